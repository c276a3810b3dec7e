//! The findings of an examination of an engine: see [`Client::examine`](crate::Client::examine).

use std::fmt;

/// How much a finding matters to locks. Ordered: the worst is the greatest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Severity {
    /// As it should be.
    Ok,
    /// Worth knowing; nothing has to be done.
    Note,
    /// Locks work, but a promise is weaker than it could be.
    Warning,
    /// Locks do not work, or can be lost in everyday operation.
    Problem,
}

impl Severity {
    /// In one word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Severity::Ok => "ok",
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Problem => "problem",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One thing that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// The subject in a word or two: `persistence`.
    pub subject: &'static str,
    /// Where, if the engine has several places: `host:port`, without secrets.
    pub place: Option<String>,
    /// The fault, and its meaning for locks.
    pub says: String,
    /// The remedy.
    pub advice: Option<String>,
}

impl Finding {
    /// A finding without advice. `says` begins with a small letter and has no full stop.
    pub fn new(severity: Severity, subject: &'static str, says: impl Into<String>) -> Finding {
        Finding { severity, subject, place: None, says: says.into(), advice: None }
    }

    /// As it should be.
    pub fn ok(subject: &'static str, says: impl Into<String>) -> Finding {
        Finding::new(Severity::Ok, subject, says)
    }

    /// Worth knowing.
    pub fn note(subject: &'static str, says: impl Into<String>) -> Finding {
        Finding::new(Severity::Note, subject, says)
    }

    /// Weaker than it could be.
    pub fn warning(subject: &'static str, says: impl Into<String>) -> Finding {
        Finding::new(Severity::Warning, subject, says)
    }

    /// Not working, or not safe.
    pub fn problem(subject: &'static str, says: impl Into<String>) -> Finding {
        Finding::new(Severity::Problem, subject, says)
    }

    /// With what to do about it.
    #[must_use]
    pub fn advice(mut self, advice: impl Into<String>) -> Finding {
        self.advice = Some(advice.into());
        self
    }

    /// With where, unless it says that already.
    #[must_use]
    pub fn at(mut self, place: &str) -> Finding {
        self.place.get_or_insert_with(|| place.to_owned());
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.severity)?;
        if let Some(place) = &self.place {
            write!(f, "{place}: ")?;
        }
        write!(f, "{}: {}", self.subject, self.says)?;
        match &self.advice {
            Some(advice) => write!(f, "; {advice}"),
            None => Ok(()),
        }
    }
}

/// All that was found, place by place.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// In the order in which they are shown.
    pub findings: Vec<Finding>,
}

impl Report {
    /// The worst severity; [`Ok`](Severity::Ok) without findings.
    pub fn worst(&self) -> Severity {
        self.findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Ok)
    }
}

impl From<Vec<Finding>> for Report {
    fn from(findings: Vec<Finding>) -> Report {
        Report { findings }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_finding_counts_for_the_whole() {
        assert_eq!(Report::default().worst(), Severity::Ok);
        let findings = vec![Finding::note("a", "b"), Finding::problem("a", "b"), Finding::ok("a", "b")];
        assert_eq!(Report::from(findings).worst(), Severity::Problem);
    }

    #[test]
    fn a_finding_is_one_line() {
        let finding =
            Finding::warning("persistence", "it has none").advice("give it some").at("a:1").at("b:2");
        assert_eq!(finding.to_string(), "warning: a:1: persistence: it has none; give it some");
    }
}
