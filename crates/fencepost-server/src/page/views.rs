//! The open pages: each is made once for all readers that see the same.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use fencepost_core::sync::Mutex;
use serde_json::{Map, Value, json};

use crate::page::parts::{Asked, Section, parts};
use crate::page::rows::{is_changed, rows};
use crate::page::{Kept, in_section, kept};
use crate::rights::caller::Caller;
use crate::rights::entry::Right;
use crate::seen::Seen;
use crate::service::Service;

/// The views that have readers. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Views(Arc<Mutex<HashMap<Key, Weak<View>>>>);

/// Readers with the same rights who ask for the same see the same.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    rights: Option<Arc<[Right]>>,
    asked: Asked,
}

/// The page as some readers see it. It lives as long as one of them.
pub(crate) struct View {
    asked: Asked,
    made: tokio::sync::Mutex<Option<Made>>,
}

/// The page at one look.
struct Made {
    seen: Arc<Seen>,
    /// The number of the look before it that they saw.
    before: Option<u64>,
    /// The changes since then. `None`: nothing has changed.
    patch: Option<Arc<str>>,
    /// All of it, once a reader has asked for it.
    whole: Option<Arc<str>>,
    /// The locks that are shown, in their order.
    order: Vec<String>,
    sections: Vec<Section>,
    /// The most waiters of a lock that are shown. `None`: the page of a lock shows them elsewhere.
    waiters: Option<usize>,
    kept: Kept,
}

impl Views {
    /// Returns the view of this reader.
    pub(crate) fn of(&self, reader: &Caller, asked: &Asked) -> Arc<View> {
        let mut views = self.0.lock();
        views.retain(|_, view| view.strong_count() > 0);
        let key = Key { rights: reader.rights.clone(), asked: asked.clone() };
        if let Some(view) = views.get(&key).and_then(Weak::upgrade) {
            return view;
        }
        let view = Arc::new(View { asked: asked.clone(), made: tokio::sync::Mutex::default() });
        views.insert(key, Arc::downgrade(&view));
        view
    }
}

impl View {
    /// Returns the number of a look, and the changes for a reader that has seen the look `last`. `None`: there are none. The number is that of
    /// `seen`, or of a later look.
    ///
    /// # Cancel safety
    /// Dropped midway, the next reader makes it.
    pub(crate) async fn patch(
        &self,
        service: &Service,
        reader: &Caller,
        seen: &Arc<Seen>,
        last: Option<u64>,
    ) -> (u64, Option<Arc<str>>) {
        let mut place = self.made.lock().await;
        let before = place.as_ref();
        if before.is_none_or(|made| made.seen.number < seen.number) {
            *place = Some(Made::of(service, reader, &self.asked, seen, before).await);
        }
        let Some(made) = place.as_mut() else { return (seen.number, None) };
        let number = made.seen.number;
        let text = match last {
            Some(last) if last == number => None,
            Some(last) if made.before == Some(last) => made.patch.clone(),
            // A reader that has missed a look gets all.
            _ => Some(made.whole(reader)),
        };
        (number, text)
    }
}

impl Made {
    async fn of(
        service: &Service,
        reader: &Caller,
        asked: &Asked,
        seen: &Arc<Seen>,
        before: Option<&Made>,
    ) -> Made {
        let is_same = |name: &str| {
            before.is_some_and(|before| match (before.seen.locks.get(name), seen.locks.get(name)) {
                (Some(earlier), Some(now)) => !is_changed((earlier, &before.seen), (now, seen)),
                (earlier, now) => earlier.is_none() && now.is_none(),
            })
        };
        let mut now_kept = before.map(|before| before.kept.clone()).unwrap_or_default();
        if asked.name.as_deref().is_some_and(|name| before.is_none() || !is_same(name)) {
            // A look that fails leaves them as they are.
            now_kept = kept(service, asked).await.unwrap_or(now_kept);
        }
        let parts = parts(service, reader, asked, seen, &now_kept);
        let order: Vec<String> = parts.locks.iter().map(|info| info.name.as_str().to_owned()).collect();
        let waiters = parts.waiters;
        let sections: Vec<Section> = parts.above.into_iter().chain(parts.below).collect();
        let patch = before.and_then(|before| {
            let is_new = |name: &str| !before.order.iter().any(|shown| shown == name) || !is_same(name);
            let changed: Vec<&String> = order.iter().filter(|name| is_new(name)).collect();
            let changed_sections: Vec<&Section> =
                sections.iter().filter(|section| !before.sections.contains(section)).collect();
            let is_quiet = changed.is_empty() && changed_sections.is_empty() && order == before.order;
            (!is_quiet).then(|| text(reader, seen, waiters, &order, changed, changed_sections))
        });
        let before = before.map(|before| before.seen.number);
        Made { seen: Arc::clone(seen), before, patch, whole: None, order, sections, waiters, kept: now_kept }
    }

    /// Returns the whole page, for a new reader.
    fn whole(&mut self, reader: &Caller) -> Arc<str> {
        let Made { seen, order, sections, waiters, .. } = &*self;
        let whole = || text(reader, seen, *waiters, order, order, sections);
        let whole = self.whole.clone().unwrap_or_else(whole);
        self.whole = Some(Arc::clone(&whole));
        whole
    }
}

/// Makes the data of an event: the order of the locks, and the rows and sections that the script puts in the place of earlier ones.
fn text<'a>(
    reader: &Caller,
    seen: &Seen,
    waiters: Option<usize>,
    order: &[String],
    changed: impl IntoIterator<Item = &'a String>,
    sections: impl IntoIterator<Item = &'a Section>,
) -> Arc<str> {
    let infos = changed.into_iter().filter_map(|name| seen.locks.get_key_value(name));
    let rows: Map<String, Value> =
        infos.map(|(name, info)| (name.clone(), rows(reader, info, seen, waiters).into())).collect();
    let sections: Map<String, Value> = sections
        .into_iter()
        .map(|(id, section)| ((*id).to_owned(), in_section(id, section).into()))
        .collect();
    let now = seen.at_micros / 1000;
    json!({ "now": now, "order": order, "rows": rows, "sections": sections }).to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_with_the_same_rights_who_ask_for_the_same_share_a_view() {
        let (views, asked) = (Views::default(), Asked::default());
        let reader = |rights: &str| Caller::new("", &[rights.parse().unwrap()], None);
        let first = views.of(&reader("read:a/"), &asked);
        assert!(Arc::ptr_eq(&first, &views.of(&reader("read:a/"), &asked)));
        let other = Asked { search: "x".to_owned(), ..Asked::default() };
        for view in [
            views.of(&reader("read:a/"), &other),
            views.of(&reader("read:b/"), &asked),
            views.of(&reader("read,evict:a/"), &asked),
            views.of(&Caller::of_this_machine(), &asked),
        ] {
            assert!(!Arc::ptr_eq(&first, &view));
        }
        drop(first);
        let kept = views.of(&reader("read:c/"), &asked);
        assert_eq!(views.0.lock().len(), 1, "a view ends with its last reader");
        drop(kept);
    }
}
