//! Queues whose events are made by hand.

use std::sync::Arc;
use std::task::{Context, Waker};

use zookeeper_client as zk;

use crate::watch::queue::{Applied, FolderQueue, Known, Position, Subscription};

fn listed(queue: &FolderQueue, names: &[&str]) {
    queue.state().lists += 1;
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    queue.change(|state, woken| state.set(&names, None, woken));
}

#[test]
fn who_is_missing_from_a_later_list_has_gone() {
    let queue = Arc::new(FolderQueue::new("/lock".to_owned(), 1));
    let [first, second] = ["a-lock-0000000001", "b-lock-0000000002"];
    let subscription = Subscription::new(Arc::clone(&queue), second).unwrap();
    listed(&queue, &[first, second]);
    assert_eq!(subscription.position(), Known::Position(Position::Behind));
    // The list after a broken connection.
    listed(&queue, &[first]);
    assert!(subscription.poll(&Context::from_waker(Waker::noop())).is_ready(), "it is not told");
    assert_eq!(subscription.position(), Known::Gone);
}

#[test]
fn a_holder_that_leaves_is_out_of_the_line_before_its_node_is() {
    let queue = Arc::new(FolderQueue::new("/lock".to_owned(), 1));
    let [first, second, third] = ["a-lock-0000000001", "b-lock-0000000002", "c-lock-0000000003"];
    listed(&queue, &[first, second, third]);
    let [next, last] = [second, third].map(|node| Subscription::new(Arc::clone(&queue), node).unwrap());
    queue.released(first);
    assert_eq!(next.position(), Known::Position(Position::First { permits: false }));
    assert_eq!(last.position(), Known::Position(Position::Behind));
    // A list that was on its way knows the node; nobody is let past it till its end is told.
    drop(next);
    queue.released(second);
    listed(&queue, &[first, second, third]);
    assert_eq!(last.position(), Known::Position(Position::Behind));
    for node in [first, second] {
        queue.change(|state, woken| state.remove(node, woken));
    }
    assert_eq!(last.position(), Known::Position(Position::First { permits: false }));
}

#[test]
fn who_sat_down_after_a_list_was_asked_for_need_not_be_in_it() {
    let queue = Arc::new(FolderQueue::new("/lock".to_owned(), 1));
    queue.state().lists += 1;
    let subscription = Subscription::new(Arc::clone(&queue), "b-lock-0000000002").unwrap();
    queue.change(|state, woken| state.set(&["a-lock-0000000001".to_owned()], None, woken));
    assert_eq!(subscription.position(), Known::Unseen);
}

#[test]
fn a_node_that_was_kept_from_us_ends_the_queue() {
    let queue = Arc::new(FolderQueue::new("/lock".to_owned(), 1));
    let made = |name: &str| (zk::EventType::NodeCreated, format!("/lock{name}"));
    let subscription = Subscription::new(Arc::clone(&queue), "d-lock-0000000003").unwrap();
    queue.change(|state, woken| state.set(&["a-lock-0000000000".to_owned()], Some(1), woken));
    // The list has the first one already; what is deeper is no child.
    let told = ["/a-lock-0000000000", "/b-lock-0000000001", "/locks/x-lock-0000000009"];
    assert_eq!(queue.apply(told.map(made).to_vec()), Applied::All);
    assert_eq!(queue.apply(vec![made("/d-lock-0000000003"), made("/e-lock-0000000004")]), Applied::Missed);
    queue.released("a-lock-0000000000");
    queue.released("b-lock-0000000001");
    assert_eq!(subscription.position(), Known::Unseen, "who was not told of may hold it");
    // A folder that is made again counts from zero.
    assert_eq!(queue.apply(vec![made(""), made("/leases"), made("/f-lock-0000000001")]), Applied::All);
}
