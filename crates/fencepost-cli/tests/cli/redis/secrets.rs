//! Passwords: where they may stand, and where they never show.

use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Masters, Redis};
use nix::sys::signal::Signal;

use crate::kit::{HOLD, Kid, LONG, Place, Said, children_of, eventually};

const SECRET: &str = "hunter2%_tr0ub4dor";
/// The same as it stands in a URL.
const ESCAPED: &str = "hunter2%25_tr0ub4dor";

#[track_caller]
fn silent(said: &Said) -> &Said {
    assert!(!said.out.contains("hunter2") && !said.err.contains("hunter2"), "{said:?}");
    said
}

#[test]
fn a_password_comes_from_the_url_the_environment_or_a_file() {
    needs!(REDIS);
    let server = Redis::start(&Config::new().password(SECRET)).unwrap();
    let address = server.address();
    let place = Place::new();
    let file = place.file("password", &format!("{SECRET}\n"));
    let by_file = format!("redis://{address}?password_file={}", file.display());
    let by_env = format!("redis://{address}?password_env=LOCKS_PASSWORD");
    let by_url = format!("redis://:{ESCAPED}@{address}");
    let run = |url: &str| {
        let mut command = place.fencepost(["run", "-n", "a", "--", "true"]);
        Kid::of(command.env("FENCEPOST_BACKEND", url).env("LOCKS_PASSWORD", SECRET)).said()
    };
    for url in [&by_file, &by_env, &by_url] {
        silent(&run(url)).expect(0);
    }
    let by_user = by_env.replace("redis://", "redis://default@");
    silent(&run(&by_user)).expect(0);
    // Without one, with a wrong one, and where it is said to be and is not.
    silent(&run(&format!("redis://{address}"))).expect(77).complains(&["wants a password", "password_env"]);
    let wrong = by_url.replace("hunter2", "hunter3");
    let said = run(&wrong);
    said.expect(77).complains(&["does not know this user and password"]);
    assert!(!said.err.contains("hunter3"), "{said:?}");
    silent(&run(&by_env.replace("LOCKS_PASSWORD", "NO_SUCH"))).expect(78).complains(&["NO_SUCH", "not set"]);
    silent(&run(&by_file.replace("password_file=", "password_file=/no")))
        .expect(78)
        .complains(&["cannot be read"]);
    // A URL that breaks a rule is not repeated.
    for url in [
        format!("redis://:{SECRET}@{address}"),
        format!("redis://:{ESCAPED}@{address}/x"),
        format!("redis://:{ESCAPED}@{address}?nonsense=1"),
        format!("redis://:{ESCAPED}@{address}?timeout=1s&timeout=2s"),
        format!("redis://:{ESCAPED}@:0"),
        format!("redis:{ESCAPED}@{address}"),
        format!("redlock:redis://:{ESCAPED}@{address}"),
    ] {
        silent(&run(&url)).expect(64);
    }
}

#[test]
fn no_argument_of_any_process_shows_it() {
    needs!(REDIS);
    let server = Redis::start(&Config::new().password(SECRET)).unwrap();
    let place = Place::new();
    let file = place.file("password", SECRET);
    let url = format!("redis://{}?password_file={}", server.address(), file.display());
    let holder = place.running(&["-b", &url], "backup", HOLD);
    let mut seen = 0;
    eventually("the guardian and the program run", LONG, || {
        let mut all = vec![holder.kid.pid()];
        let mut next = 0;
        while next < all.len() {
            all.extend(children_of(all[next]));
            next += 1;
        }
        seen = all.len();
        for pid in &all {
            let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            assert!(!String::from_utf8_lossy(&arguments).contains("hunter2"), "process {pid} shows it");
            // The program finds it nowhere either: it was read from a file.
            let variables = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            assert!(!String::from_utf8_lossy(&variables).contains("hunter2"), "process {pid} has it");
        }
        (seen >= 3).then_some(())
    });
    silent(&place.output(["ls", "-b", &url])).expect(0);
    holder.kid.send(Signal::SIGTERM);
    silent(&holder.kid.said()).expect(143);
}

#[test]
fn nodes_of_a_quorum_share_where_their_password_is() {
    needs!(REDIS);
    let masters = Masters::start(3, &Config::new().password(SECRET)).unwrap();
    let urls: Vec<_> = masters.nodes().iter().map(|node| format!("redis://{}", node.address())).collect();
    let place = Place::new();
    let file = place.file("password", SECRET);
    let url = format!("redlock:{}?password_file={}", urls.join(","), file.display());
    silent(&place.output(["doctor", "--init", "--yes", "-b", &url])).expect(0);
    silent(&place.output(["run", "-b", &url, "a", "--", "true"])).expect(0);
    silent(&place.output(["ls", "-b", &format!("redlock:{}", urls.join(","))])).expect(77);
}
