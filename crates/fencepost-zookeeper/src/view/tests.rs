//! Views that are fed by hand.

use super::*;

fn listed(view: &View, names: &[&str]) {
    view.state().lists += 1;
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    view.change(|state, woken| state.set(&names, None, woken));
}

#[test]
fn who_is_missing_from_a_later_list_has_gone() {
    let view = Arc::new(View::new("/lock".to_owned()));
    let [first, second] = ["a-lock-0000000001", "b-lock-0000000002"];
    let sits = Seat::take(Arc::clone(&view), second).unwrap();
    listed(&view, &[first, second]);
    assert_eq!(sits.judge(), Word::Wait { ahead: 1 });
    // What happened while the connection was broken.
    listed(&view, &[first]);
    assert!(sits.poll(&Context::from_waker(Waker::noop())).is_ready(), "it is not told");
    assert_eq!(sits.judge(), Word::Gone);
}

#[test]
fn a_holder_that_leaves_is_out_of_the_line_before_its_node_is() {
    let view = Arc::new(View::new("/lock".to_owned()));
    let [first, second, third] = ["a-lock-0000000001", "b-lock-0000000002", "c-lock-0000000003"];
    listed(&view, &[first, second, third]);
    let [next, last] = [second, third].map(|node| Seat::take(Arc::clone(&view), node).unwrap());
    view.left(first);
    assert_eq!(next.judge(), Word::Now { permits: false });
    assert_eq!(last.judge(), Word::Wait { ahead: 1 });
    // A list that was on its way knows the node; nobody is let past it till its end is told.
    drop(next);
    view.left(second);
    listed(&view, &[first, second, third]);
    assert_eq!(last.judge(), Word::Wait { ahead: 2 });
    for node in [first, second] {
        view.change(|state, woken| state.remove(node, woken));
    }
    assert_eq!(last.judge(), Word::Now { permits: false });
}

#[test]
fn who_sat_down_after_a_list_was_asked_for_need_not_be_in_it() {
    let view = Arc::new(View::new("/lock".to_owned()));
    view.state().lists += 1;
    let sits = Seat::take(Arc::clone(&view), "b-lock-0000000002").unwrap();
    view.change(|state, woken| state.set(&["a-lock-0000000001".to_owned()], None, woken));
    assert_eq!(sits.judge(), Word::Unseen);
}

#[test]
fn a_node_that_was_kept_from_us_ends_the_view() {
    let view = Arc::new(View::new("/lock".to_owned()));
    let made = |name: &str| (zk::EventType::NodeCreated, format!("/lock{name}"));
    let sits = Seat::take(Arc::clone(&view), "d-lock-0000000003").unwrap();
    view.change(|state, woken| state.set(&["a-lock-0000000000".to_owned()], Some(1), woken));
    // The list has the first one already; what is deeper is no child.
    let told = ["/a-lock-0000000000", "/b-lock-0000000001", "/locks/x-lock-0000000009"];
    assert_eq!(view.heed(told.map(made).to_vec()), Heed::Whole);
    assert_eq!(view.heed(vec![made("/d-lock-0000000003"), made("/e-lock-0000000004")]), Heed::Gap);
    view.left("a-lock-0000000000");
    view.left("b-lock-0000000001");
    assert_eq!(sits.judge(), Word::Unseen, "who was not told of may hold it");
    // Made anew, a folder counts anew.
    assert_eq!(view.heed(vec![made(""), made("/leases"), made("/f-lock-0000000001")]), Heed::Whole);
}
