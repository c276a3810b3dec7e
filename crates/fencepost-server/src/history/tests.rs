use super::*;

fn grant(name: &str, token: u64) -> Grant {
    let claim = ClaimInfo::new(HolderInfo::new("me", "h", 7), fencepost_core::Mode::Exclusive);
    Grant::of(&Name::new(name).unwrap(), &claim, Token::new(token), now_micros())
}

#[test]
fn the_oldest_grants_go() {
    let history = History::default();
    assert_eq!((OF_LOCK, OF_ALL), (1_000, 10_000), "the page of the service promises these");
    for token in 0..1_500 {
        history.granted(grant("hot", token));
    }
    let hot = Name::new("hot").unwrap();
    assert_eq!(history.of_lock(&hot, 2_000).len(), OF_LOCK);
    for lock in 0..OF_ALL - OF_LOCK {
        history.granted(grant(&format!("lock/{lock}"), 1));
    }
    assert_eq!(history.of_lock(&hot, 2_000).len(), OF_LOCK);
    history.granted(grant("one/more", 1));
    let left = history.of_lock(&hot, 2_000);
    assert_eq!((left.len(), left[0].token), (OF_LOCK - 1, Token::new(1_499)));
    let state = history.0.lock();
    assert_eq!(state.grants.len(), state.of_lock.values().map(BTreeMap::len).sum::<usize>());
}

#[test]
fn a_release_ends_the_grant_of_its_lease_whatever_token_its_text_has() {
    let (history, name) = (History::default(), Name::new("a").unwrap());
    // Their token is 0.
    let lease = |id| {
        let (id, ttl) = (fencepost_core::ClaimId::from_u128(id), Duration::from_secs(9));
        DetachedLease::of(id, name.clone(), fencepost_core::Mode::Shared, ttl)
    };
    for number in [1, 2] {
        history.granted(Grant { lease: Some(lease(number.into())), ..grant("a", number) });
    }
    [3, 1].into_iter().for_each(|number| history.released(&lease(number)));
    let ends: Vec<_> = history.of_lock(&name, 9).iter().map(|grant| grant.end.is_some()).collect();
    assert_eq!(ends, [false, true]);
}

#[test]
fn a_grant_is_added_once_and_ends_once() {
    let (history, name) = (History::default(), Name::new("a").unwrap());
    history.granted(grant("a", 1));
    history.granted(grant("a", 1));
    history.evicted(&name, Token::new(1));
    history.ended(&name, Token::new(1), How::Released);
    history.ended(&name, Token::new(1), How::Lost);
    history.ended(&name, Token::new(2), How::Lost);
    let grants = history.of_lock(&name, 9);
    assert_eq!(grants.len(), 1);
    assert_eq!(grants[0].end.map(|end| end.how), Some(How::Evicted));
}

#[test]
fn callers_are_kept_while_their_grants_may_be_held() {
    let (history, grant) = (History::default(), grant("a", 1));
    let since = grant.since_micros;
    history.granted(Grant { caller: Some("ci".into()), ..grant });
    let kept = |began| history.callers(began, &BTreeMap::new()).len();
    assert_eq!([kept(since), kept(since + 1)], [1, 0], "a look that began before it may have missed it");
}

#[test]
fn a_grant_that_ended_between_two_looks_has_ended() {
    let (history, name) = (History::default(), Name::new("a").unwrap());
    let start = now_micros() - 60_000_000;
    // Granted at this second, with a lease of so many seconds.
    let granted = |token: u64, second: u64, ttl: u64| {
        let (id, ttl) = (fencepost_core::ClaimId::from_u128(token.into()), Duration::from_secs(ttl));
        let lease = DetachedLease::of(id, name.clone(), fencepost_core::Mode::Shared, ttl);
        let since_micros = start + second * 1_000_000;
        history.granted(Grant { lease: Some(lease), since_micros, ..grant("a", token) });
    };
    let look = |began: u64| {
        let began_micros = start + began * 1_000_000;
        let seen = Seen { began_micros, at_micros: began_micros + 1_000_000, ..Seen::default() };
        history.observe(&Arc::new(seen));
        let grants = history.of_lock(&name, 9);
        let how = |grant: &super::Grant| (grant.token.get(), grant.end.map(|end| (end.how, end.is_exact)));
        grants.iter().map(how).collect::<Vec<_>>()
    };
    granted(1, 1, 2);
    granted(2, 2, 30);
    assert_eq!(
        look(2),
        [(2, None), (1, Some((How::Expired, false)))],
        "this look may have missed the second"
    );
    assert_eq!(look(20)[0], (2, Some((How::Released, false))));
    history.ended(&name, Token::new(2), How::Lost);
    assert_eq!(look(40)[0], (2, Some((How::Lost, true))), "its holder knows it better");
}

/// A look that took long does not make the end of a lease look as if it had moved.
#[test]
fn a_renewed_lease_is_told_from_a_slow_look() {
    let (history, name) = (History::default(), Name::new("a").unwrap());
    let start = now_micros() - 60_000_000;
    // A look at this second that took so long, and the holding that it then shows.
    let look = |second: u64, took: u64, left: u64| {
        let mut claim = ClaimInfo::new(HolderInfo::new("me", "h", 7), fencepost_core::Mode::Exclusive);
        claim.token = Some(Token::new(1));
        (claim.age, claim.expires_in) = (Duration::from_secs(second), Some(Duration::from_secs(left)));
        let began_micros = start + second * 1_000_000;
        let at_micros = began_micros + took * 1_000_000;
        let locks = BTreeMap::from([("a".to_owned(), Info::new(name.clone(), None, vec![claim.clone()]))]);
        history.observe(&Arc::new(Seen { began_micros, at_micros, locks, ..Seen::default() }));
        history.holding(&name, &claim, at_micros)
    };
    assert_eq!(look(0, 0, 30).renewed_micros, None);
    assert_eq!(look(10, 5, 20).renewed_micros, None, "it ends when it did before");
    assert_eq!(look(20, 0, 30).renewed_micros, Some(start + 20_000_000));
    let later = look(30, 0, 20);
    assert_eq!(later.renewed_micros, Some(start + 20_000_000), "not again");
    assert_eq!(later.since_micros, start, "no grant is known, so its age tells");
    // Its row among the grants and the sentence about it name the same second.
    history.granted(Grant { since_micros: start + 700_000, ..grant("a", 1) });
    assert_eq!(look(31, 0, 19).since_micros, start + 700_000);
    history.observe(&Arc::new(Seen { at_micros: start + 40_000_000, ..Seen::default() }));
    assert!(history.0.lock().renewed.is_empty(), "nobody holds it");
}

#[test]
fn looks_are_compared() {
    let (history, name) = (History::default(), Name::new("a").unwrap());
    let claim = |label: &str, token: Option<u64>, left: u64| {
        let mut claim = ClaimInfo::new(HolderInfo::new(label, "h", 7), fencepost_core::Mode::Exclusive);
        claim.token = token.map(Token::new);
        claim.expires_in = token.map(|_| Duration::from_secs(left));
        claim.age = Duration::from_secs(if token.is_some() { 0 } else { 2 });
        claim
    };
    let start = now_micros() - 10_000_000;
    let look = |second: u64, claims: Vec<ClaimInfo>| {
        let locks = match claims.is_empty() {
            true => BTreeMap::new(),
            false => BTreeMap::from([("a".to_owned(), Info::new(name.clone(), None, claims))]),
        };
        history.observe(&Arc::new(Seen { at_micros: start + second * 1_000_000, locks, ..Seen::default() }));
    };
    look(0, vec![claim("first", Some(1), 30)]);
    assert!(history.of_lock(&name, 9).is_empty(), "it was granted before");
    look(1, vec![claim("first", Some(1), 30), claim("second", None, 0)]);
    look(2, vec![claim("second", Some(2), 1)]);
    look(4, vec![claim("third", Some(3), 30)]);
    let mut evicted = claim("third", Some(3), 30);
    evicted.evicted = true;
    look(5, vec![evicted]);
    look(6, vec![]);
    let grants = history.of_lock(&name, 9);
    let how: Vec<_> = grants.iter().map(|grant| (grant.token.get(), grant.end.unwrap().how)).collect();
    let second = |micros: u64| (micros - start) / 1_000_000;
    let end = grants[0].end.unwrap();
    assert_eq!([second(end.after_micros), second(end.at_micros)], [5, 6], "it ended between two looks");
    let hour = history.hour().until(now_micros());
    let sum = |of: fn(&crate::hour::Minute) -> u32| hour.iter().flatten().map(of).sum::<u32>();
    assert_eq!(
        [sum(|minute| minute.grants), sum(|minute| minute.losses), sum(|minute| minute.evictions)],
        [3, 1, 1]
    );
    assert_eq!(how, [(3, How::Evicted), (2, How::Expired), (1, How::Released)]);
    assert_eq!(grants[1].waited, Some(Duration::from_secs(3)));
    let hot = history.hot(9, |_| true);
    assert_eq!((hot.len(), hot[0].waited), (1, Some([Duration::from_secs(3); 2])));
    assert!(history.hot(9, |_| false).is_empty());
}
