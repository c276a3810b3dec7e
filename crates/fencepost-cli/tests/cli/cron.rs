//! The recipe of docs/cron.md: its table and its units run here, on three hosts with one server.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Redis};
use nix::sys::signal::Signal;

use crate::kit::{Kid, LONG, Place, eventually};

const PAGE: &str = include_str!("../../../../docs/cron.md");

/// The file of the page that has its path in a comment.
fn file(path: &str) -> String {
    let comment = format!("\n# {path}\n");
    let mut found = PAGE.split("```").filter(|block| block.contains(&comment));
    let file = found.next().unwrap_or_else(|| panic!("the page has no {path}"));
    assert_eq!(found.next(), None, "the page has two files {path}");
    file.split_once('\n').unwrap().1.to_owned()
}

/// The variables and the command of a table.
fn table(path: &str) -> (Vec<String>, String) {
    let table = file(path);
    let lines = table.lines().filter(|line| !line.starts_with('#'));
    let (variables, jobs): (Vec<_>, Vec<_>) =
        lines.partition(|line| !line.contains(' ') && line.contains('='));
    let [job] = jobs[..] else { panic!("{jobs:?}") };
    // cron ends the command at a percent sign.
    assert!(!job.contains('%'), "{job}");
    let (time, command) = job.split_once(" root ").unwrap();
    assert_eq!(time.split(' ').count(), 5, "{job}");
    (variables.into_iter().map(str::to_owned).collect(), command.to_owned())
}

/// The command of the unit.
fn unit() -> String {
    let unit = file("/etc/systemd/system/nightly.service");
    unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap().to_owned()
}

/// The text with a client of Redis that talks to this server.
fn client(text: &str, server: &Redis) -> String {
    let port = server.url().rsplit_once(':').unwrap().1.to_owned();
    text.replace("redis-cli -h redis.example.com", &format!("redis-cli -p {port}"))
}

/// Three hosts with their own settings and one server. A report writes a line into one file.
struct Hosts {
    server: Redis,
    places: [Place; 3],
}

impl Hosts {
    fn start() -> Hosts {
        let server = Redis::start(&Config::new()).unwrap();
        let places = [Place::new(), Place::new(), Place::new()];
        let runs = places[0].file("runs", "");
        for place in &places {
            place.file(
                "etc.toml",
                &file("/etc/fencepost.toml").replace("redis://redis.example.com", &server.url()),
            );
            let work = format!("echo \"$FENCEPOST_TOKEN\" >> {}", runs.display());
            let script = file("/usr/local/bin/report").replace("# Here the report is made.", &work);
            let report = place.file("report", &client(&script, &server));
            fs::set_permissions(report, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Hosts { server, places }
    }

    /// How often the report has run.
    fn runs(&self) -> usize {
        self.places[0].read("runs").lines().count()
    }

    /// The output of the check in the morning, and of the check for engines that keep no runs.
    fn checks(&self) -> [String; 2] {
        ["/etc/cron.d/nightly-check", "/etc/cron.d/nightly-check, instead of the one above"].map(|path| {
            let (variables, command) = table(path);
            self.cron(&self.places[0], &variables, &command).said().out
        })
    }

    /// A line as it stands on the page, with the programs where they are on this host.
    fn here(&self, place: &Place, line: &str) -> String {
        client(line, &self.server)
            .replace("/usr/local/bin/fencepost", env!("CARGO_BIN_EXE_fencepost"))
            .replace("/usr/local/bin/report", &place.path("report").display().to_string())
    }

    /// Starts a command on a host with the environment that cron gives it, and no other.
    fn cron(&self, place: &Place, variables: &[String], command: &str) -> Kid {
        let mut cron = Command::new("env");
        cron.args(["-i", "--default-signal"]).args(variables).arg("PATH=/usr/bin:/bin");
        cron.arg(format!("HOME={}", place.path("").display()));
        cron.arg(format!("FENCEPOST_TEST_ETC={}", place.path("etc.toml").display()));
        cron.args(["/bin/sh", "-c", &self.here(place, command)]);
        cron.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Kid::of(&mut cron)
    }
}

/// The page's line for engines that keep no runs.
const WITHOUT_RUNS: &str = "/etc/cron.d/nightly, with an engine that keeps no runs";

#[test]
fn one_of_three_hosts_runs_the_job() {
    needs!(REDIS);
    let hosts = Hosts::start();
    let (variables, command) = table("/etc/cron.d/nightly");
    let start = |place| hosts.cron(place, &variables, &command);
    let [check, mark] = hosts.checks();
    assert!(
        check.starts_with("CRITICAL: nightly has had no successful run for 26h: none is recorded"),
        "{check}"
    );
    assert_eq!(mark, "nightly: no good run for 26 hours\n");
    let running: Vec<Kid> = hosts.places.iter().map(start).collect();
    for host in running {
        let said = host.said();
        assert_eq!((said.expect(0).out.as_str(), said.err.as_str()), ("", ""), "cron sends no mail");
    }
    // A host whose clock is late comes now.
    assert_eq!(start(&hosts.places[1]).said().expect(0).err, "");
    let shown = hosts.cron(&hosts.places[2], &[], "/usr/local/bin/fencepost show nightly").said();
    assert!(shown.expect(0).out.contains("last run: exit code 0"), "{shown:?}");
    assert_eq!((hosts.runs(), hosts.checks()), (1, [String::new(), String::new()]));
}

#[test]
fn a_server_that_is_away_for_a_moment_costs_no_night() {
    needs!(REDIS);
    let mut hosts = Hosts::start();
    let (variables, command) = table("/etc/cron.d/nightly");
    hosts.server.kill().unwrap();
    let running: Vec<Kid> =
        hosts.places.iter().map(|place| hosts.cron(place, &variables, &command)).collect();
    hosts.server.restart().unwrap();
    for host in running {
        assert_eq!(host.said().expect(0).err, "");
    }
    assert_eq!(hosts.runs(), 1);
}

#[test]
fn one_of_three_hosts_runs_the_job_without_runs() {
    needs!(REDIS);
    let hosts = Hosts::start();
    let (variables, command) = table(WITHOUT_RUNS);
    // A signal of the test goes to the command itself.
    let start = |place| hosts.cron(place, &variables, &format!("exec {command}"));
    let mut running: Vec<Kid> = hosts.places.iter().map(start).collect();
    for _ in 0..2 {
        let skipped = eventually("a host that finds the lock busy", LONG, || {
            running.iter_mut().position(|host| host.child().try_wait().unwrap().is_some())
        });
        let said = running.remove(skipped).said();
        assert_eq!((said.expect(0).out.as_str(), said.err.as_str()), ("", ""), "cron sends no mail");
    }
    eventually("the report", LONG, || (hosts.runs() == 1).then_some(()));
    // The job is over, and a host whose clock is late comes now.
    assert_eq!(start(&hosts.places[1]).said().expect(0).err, "");
    running[0].send(Signal::SIGTERM);
    assert_eq!(running.remove(0).said().expect(0).err, "");
    assert_eq!(hosts.runs(), 1);
}

#[test]
fn no_host_runs_the_job_without_the_server() {
    needs!(REDIS);
    let mut hosts = Hosts::start();
    let (variables, command) = table(WITHOUT_RUNS);
    hosts.server.kill().unwrap();
    let said = hosts.cron(&hosts.places[0], &variables, &command).said();
    said.expect(69).complains(&["127.0.0.1"]);
    assert_eq!(hosts.runs(), 0);
}

#[test]
fn the_check_warns_until_a_run_has_ended_well() {
    warns_until_a_run_has_ended_well(&Place::new());
    needs!(REDIS);
    let server = Redis::start(&Config::new()).unwrap();
    warns_until_a_run_has_ended_well(&Place::at(&server.url()));
}

fn warns_until_a_run_has_ended_well(place: &Place) {
    let (_, command) = table("/etc/cron.d/nightly-check");
    let command = command.replace("/usr/local/bin/fencepost", env!("CARGO_BIN_EXE_fencepost"));
    let check = || Kid::of(&mut place.via("sh", ["-c", &command])).said().out;
    assert!(check().contains("CRITICAL"), "{}", check());
    place.output(["run", "nightly", "--", "false"]).expect(1);
    assert!(check().contains("CRITICAL"), "{}", check());
    place.output(["run", "nightly", "--", "true"]).expect(0);
    assert_eq!(check(), "");
    let shown = place.output(["show", "nightly"]);
    assert!(shown.out.contains("last run: exit code 0"), "{shown:?}");
}

#[test]
fn the_timer_of_systemd_runs_the_same_command() {
    needs!(SYSTEMD);
    assert_eq!(unit(), table("/etc/cron.d/nightly").1);
    let place = Place::new();
    for name in ["nightly.service", "nightly.timer"] {
        let unit = file(&format!("/etc/systemd/system/{name}"));
        place.file(name, &unit.replace("/usr/local/bin/fencepost", env!("CARGO_BIN_EXE_fencepost")));
    }
    let said = Kid::of(
        &mut place.via("systemd-analyze", ["verify", "--man=no", "./nightly.service", "./nightly.timer"]),
    );
    let said = said.said();
    assert_eq!(said.expect(0).err, "", "{said:?}");
}
