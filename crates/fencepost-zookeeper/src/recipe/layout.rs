//! The folders and node names of a lock: those of Curator, of kazoo, or of a template.

use fencepost_core::{ClaimId, Error, Mode, Result};

/// Curator's names for the folders of `InterProcessSemaphoreV2`.
pub(crate) const LOCKS: &str = "locks";
pub(crate) const LEASES: &str = "leases";

/// Returns whether a node in a lock's folder is a folder of permits. The server removes each of the two when it is empty.
pub(crate) fn is_of_permits(name: &str) -> bool {
    name == LOCKS || name == LEASES
}

/// How a deployment names nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    /// The parts of the folder's path before and after the lock's own node.
    before: String,
    after: String,
    exclusive: Template,
    writer: Template,
    shared: Option<Template>,
    /// The nodes of `InterProcessSemaphoreV2`; only Curator has it.
    lease: Option<Template>,
    /// Folders stay when they are empty.
    keeps: bool,
}

/// The name of a node before its sequence number.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Template {
    before: String,
    dashes: bool,
    after: String,
}

impl Template {
    fn new(before: &str, dashes: bool, after: &str) -> Template {
        Template { before: before.to_owned(), dashes, after: after.to_owned() }
    }

    fn parse(text: &str) -> Option<Template> {
        let (mark, dashes) = if text.contains("{uuid}") { ("{uuid}", true) } else { ("{hex}", false) };
        let (before, after) = text.split_once(mark)?;
        (!after.contains(['{', '}']) && !before.contains(['{', '}']))
            .then(|| Template::new(before, dashes, after))
    }

    fn of(&self, id: ClaimId) -> String {
        let hex = id.to_hex();
        if !self.dashes {
            return format!("{}{hex}{}", self.before, self.after);
        }
        let [a, b, c, d, e] = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
        format!("{}{a}-{b}-{c}-{d}-{e}{}", self.before, self.after)
    }
}

impl Layout {
    /// Parses the options `layout` and `node`.
    pub(crate) fn parse(layout: Option<&str>, node: Option<&str>) -> Result<Layout> {
        match (layout, node) {
            (None | Some("curator"), None) => Ok(Layout::curator()),
            (Some("kazoo"), None) => Ok(Layout::kazoo()),
            (Some("curator" | "kazoo"), Some(_)) => {
                Err(Error::invalid("layout and node exclude each other; leave one out"))
            }
            (Some(_), _) => Err(Error::invalid("layout is curator or kazoo; other names are given by node")),
            (None, Some(node)) => Layout::template(node),
        }
    }

    fn curator() -> Layout {
        let of = |after| Template::new("_c_", true, after);
        Layout {
            before: String::new(),
            after: String::new(),
            exclusive: of("-lock-"),
            writer: of("-__WRIT__"),
            shared: Some(of("-__READ__")),
            lease: Some(of("-lease-")),
            keeps: false,
        }
    }

    fn kazoo() -> Layout {
        let of = |after| Template::new("", false, after);
        Layout {
            before: String::new(),
            after: String::new(),
            exclusive: of("__lock__"),
            writer: of("__lock__"),
            shared: Some(of("__rlock__")),
            lease: None,
            keeps: true,
        }
    }

    /// Parses `{name}/_c_{hex}-lock-`, or a node's name alone.
    fn template(text: &str) -> Result<Layout> {
        let rule = || {
            Error::invalid(
                "node is the name of a node before its number, with {uuid} or {hex} for the claim, and maybe a folder with \
                 {name} for the lock: _c_{hex}-lock-, or {name}/locks/{uuid}-lock-",
            )
        };
        let (folder, node) = text.rsplit_once('/').unwrap_or(("{name}", text));
        let (before, after) = folder.split_once("{name}").ok_or_else(rule)?;
        let plain = |text: &str| {
            !text.contains(['{', '}', '%'])
                && !text.chars().any(|c| c.is_control() || crate::recipe::names::is_forbidden(c))
        };
        // The lock's node is a whole part of the path, so that no two locks share a folder.
        let whole =
            (before.is_empty() || before.ends_with('/')) && (after.is_empty() || after.starts_with('/'));
        let parts = |text: &str| text.trim_matches('/').split('/').all(|part| !matches!(part, "." | ".."));
        if !whole
            || !plain(folder.replace("{name}", "").as_str())
            || after.ends_with('/')
            || folder.contains("//")
            || !parts(before)
            || !parts(after)
        {
            return Err(rule());
        }
        let exclusive = Template::parse(node).ok_or_else(rule)?;
        if !plain(&exclusive.before)
            || !plain(&exclusive.after)
            || !exclusive.after.ends_with(|c: char| !c.is_ascii_digit())
        {
            return Err(rule());
        }
        Ok(Layout {
            before: before.trim_start_matches('/').to_owned(),
            after: after.to_owned(),
            writer: exclusive.clone(),
            exclusive,
            shared: None,
            lease: None,
            keeps: false,
        })
    }

    /// Returns whether folders stay when they are empty. A `Lock` of kazoo makes its folder once, and fails for good when it is gone.
    pub(crate) fn keeps_folders(&self) -> bool {
        self.keeps
    }

    /// Returns whether shared holders are possible.
    pub(crate) fn has_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Returns whether permits are possible.
    pub(crate) fn has_permits(&self) -> bool {
        self.lease.is_some()
    }

    /// Returns why some modes are not possible.
    pub(crate) fn lacks(&self) -> Option<&'static str> {
        match (self.has_shared(), self.has_permits()) {
            (true, true) => None,
            (true, false) => Some(
                "kazoo's names (layout=kazoo) are for mutexes and read-write locks; leave layout out, with another path in the \
                 URL, for Curator's names, which have all",
            ),
            (false, _) => Some(
                "names by a template (node=…) are for mutexes alone; leave node out, with another path in the URL, for \
                 Curator's names, which have all",
            ),
        }
    }

    /// Returns the folder of a lock whose own node is `node`.
    pub(crate) fn folder(&self, root: &str, node: &str) -> String {
        format!("{root}/{}{node}{}", self.before, self.after)
    }

    /// Returns the folder that has the locks' own nodes.
    pub(crate) fn parent(&self, root: &str) -> String {
        let path = format!("{root}/{}", self.before);
        let path = path.trim_end_matches('/');
        if path.is_empty() { "/".to_owned() } else { path.to_owned() }
    }

    /// Returns the beginning of the name of a claim's node. `read_write`: the lock is a read-write lock.
    pub(crate) fn prefix(&self, id: ClaimId, mode: Mode, read_write: bool) -> String {
        match mode {
            Mode::Exclusive if read_write => self.writer.of(id),
            Mode::Exclusive => self.exclusive.of(id),
            Mode::Shared => self.shared.as_ref().unwrap_or(&self.exclusive).of(id),
            // The queue for a permit is a mutex.
            Mode::Permits { .. } => self.exclusive.of(id),
        }
    }

    /// Returns the beginning of the names of a claim's permits.
    pub(crate) fn lease(&self, id: ClaimId) -> String {
        self.lease.as_ref().unwrap_or(&self.exclusive).of(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: ClaimId = ClaimId::from_u128(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);

    #[test]
    fn curators_names() {
        let layout = Layout::parse(None, None).unwrap();
        let uuid = "01234567-89ab-cdef-0123-456789abcdef";
        assert_eq!(layout.prefix(ID, Mode::Exclusive, false), format!("_c_{uuid}-lock-"));
        assert_eq!(layout.prefix(ID, Mode::Exclusive, true), format!("_c_{uuid}-__WRIT__"));
        assert_eq!(layout.prefix(ID, Mode::Shared, true), format!("_c_{uuid}-__READ__"));
        assert_eq!(layout.lease(ID), format!("_c_{uuid}-lease-"));
        assert_eq!(layout.folder("/app", "a%2Fb"), "/app/a%2Fb");
        assert_eq!((&*layout.parent("/app"), &*layout.parent("")), ("/app", "/"));
    }

    #[test]
    fn kazoos_names() {
        let layout = Layout::parse(Some("kazoo"), None).unwrap();
        assert_eq!(layout.prefix(ID, Mode::Exclusive, false), "0123456789abcdef0123456789abcdef__lock__");
        assert_eq!(layout.prefix(ID, Mode::Shared, true), "0123456789abcdef0123456789abcdef__rlock__");
        assert!(layout.has_shared() && !layout.has_permits());
    }

    #[test]
    fn names_of_a_template() {
        let layout = Layout::parse(None, Some("go/{name}/locks/_c_{hex}-lock-")).unwrap();
        assert_eq!(layout.folder("/app", "a"), "/app/go/a/locks");
        assert_eq!(layout.parent("/app"), "/app/go");
        let layout = Layout::parse(None, Some("{uuid}_")).unwrap();
        assert_eq!(layout.folder("", "a"), "/a");
        for bad in [
            "lock-",
            "x{name}/{hex}-",
            "{name}x/{hex}-",
            "a/b/{hex}-",
            "{name}/{hex}7",
            "../{name}/{hex}-",
            "{name}//{hex}-",
        ] {
            assert!(Layout::parse(None, Some(bad)).is_err(), "{bad}");
        }
    }
}
