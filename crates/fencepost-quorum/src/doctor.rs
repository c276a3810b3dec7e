//! One report for the findings at several nodes.

use fencepost_core::{Finding, Report, Result, Severity};

/// Merges the nodes' findings, and says whether a majority can grant. A failed node is no problem of the whole as long as enough
/// others work.
pub(crate) fn merged(answers: Vec<Option<Result<Report>>>, need: usize) -> Report {
    let all = answers.len();
    let mut well = 0;
    let mut findings = Vec::new();
    for (number, answer) in (1..).zip(answers) {
        let found = match answer {
            Some(Ok(report)) => report.findings,
            Some(Err(error)) => vec![Finding::problem("node", error.to_string())],
            None => vec![Finding::problem("node", "it did not answer in time")],
        };
        if found.iter().all(|finding| finding.severity < Severity::Problem) {
            well += 1;
        }
        findings.extend(found.into_iter().map(|finding| finding.at(&format!("node {number}"))));
    }
    if well >= need {
        for finding in &mut findings {
            finding.severity = finding.severity.min(Severity::Warning);
        }
    }
    findings.insert(0, majority(well, all, need));
    findings.into()
}

fn majority(well: usize, all: usize, need: usize) -> Finding {
    let says = format!("{well} of {all} nodes can grant, {need} are needed");
    let severity = match well {
        _ if well < need => Severity::Problem,
        _ if well < all => Severity::Warning,
        _ => Severity::Ok,
    };
    let finding = Finding::new(severity, "majority", says);
    if severity == Severity::Ok { finding } else { finding.advice("check the others below") }
}

#[cfg(test)]
mod tests {
    use fencepost_core::Error;

    use super::*;

    #[test]
    fn a_minority_in_trouble_is_a_warning_and_a_majority_a_problem() {
        let well = || Some(Ok(Report::from(vec![Finding::ok("a", "b").at("host:1")])));
        let ill = || Some(Err(Error::invalid("it is ill")));
        let report = merged(vec![well(), ill(), well()], 2);
        assert_eq!(report.worst(), Severity::Warning);
        assert_eq!(report.findings[0].says, "2 of 3 nodes can grant, 2 are needed");
        let places: Vec<_> = report.findings.iter().filter_map(|finding| finding.place.as_deref()).collect();
        assert_eq!(places, ["host:1", "node 2", "host:1"]);
        let majority = |answers| {
            let report = merged(answers, 2);
            (report.findings[0].severity, report.findings[0].advice.is_some())
        };
        assert_eq!(majority(vec![well(), ill(), well()]), (Severity::Warning, true));
        assert_eq!(majority(vec![well(), ill(), None]), (Severity::Problem, true));
        assert_eq!(majority(vec![well(), well(), well()]), (Severity::Ok, false));
        assert_eq!(merged(vec![well(), ill(), None], 2).worst(), Severity::Problem);
        assert_eq!(merged(vec![well(), well(), well()], 2).worst(), Severity::Ok);
    }
}
