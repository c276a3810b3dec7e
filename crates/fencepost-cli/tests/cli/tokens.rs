//! The statements of docs/tokens.md, run on real servers: a holder writes, the next one writes, and the late write of
//! the first is refused.

use fencepost_testkit::needs;
use std::fs;
use std::process::Command;

use fencepost_testkit::redis::{Config, Redis};
use fencepost_testkit::server::TempDir;
use fencepost_testkit::sql::{MariaDb, Postgres};
use rusqlite::Connection;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tokens.md");
const TABLE: &str =
    "CREATE TABLE stock (id BIGINT PRIMARY KEY, pieces BIGINT); INSERT INTO stock VALUES (7, 100);";

/// The code blocks of a section of the page.
fn blocks(section: &str, language: &str) -> Vec<String> {
    let page = fs::read_to_string(PAGE).unwrap();
    let (_, rest) = page.split_once(&format!("\n## {section}\n")).expect("the section is there");
    let text = rest.split("\n## ").next().unwrap();
    let opening = format!("```{language}\n");
    text.split(&opening)
        .skip(1)
        .map(|block| block.split("```").next().unwrap().trim_end().to_owned())
        .collect()
}

/// The answers of three statements that prepare others.
const PREPARED: &str = "0 changed\n0 changed\n0 changed\n";

#[test]
fn postgresql_refuses_a_late_write() {
    needs!(POSTGRES);
    let server = Postgres::start().unwrap();
    let [column, read, write, insert] = blocks("PostgreSQL", "sql").try_into().unwrap();
    let prepare = format!(
        "PREPARE read(BIGINT, BIGINT) AS {read}\nPREPARE write(BIGINT, BIGINT, BIGINT) AS {write}\n\
         PREPARE insert(BIGINT, BIGINT) AS {insert}\n"
    );
    server.run(&format!("{TABLE}\n{column}")).unwrap();
    let try_run = |statement: &str| server.run(&format!("{prepare}{statement}"));
    let run = |statement: &str| try_run(statement).unwrap().strip_prefix(PREPARED).unwrap().to_owned();

    // Each holder reads and writes, and may repeat its write.
    assert_eq!(run("EXECUTE read(7, 41);"), "100\n");
    assert_eq!(run("EXECUTE write(7, 41, 99);"), "1 changed\n");
    assert_eq!(run("EXECUTE write(7, 41, 99);"), "1 changed\n");
    // The next holder has only read, and the late write is refused already.
    assert_eq!(run("EXECUTE read(7, 42);"), "99\n");
    assert_eq!(run("EXECUTE write(7, 41, 1);"), "0 changed\n");
    assert_eq!(run("EXECUTE read(7, 41);"), "");
    assert_eq!(server.run("SELECT pieces, token FROM stock;").unwrap(), "99|42\n");
    for token in ["NULL", "''", "'abc'", "-1", "9223372036854775808"] {
        for statement in ["read(7, $2)", "write(7, $2, 1)", "insert(7, $2)", "insert(8, $2)"] {
            let text = format!("EXECUTE {};", statement.replace("$2", token));
            let done = try_run(&text).unwrap_or_default();
            assert!(
                ["", "0 changed\n"].contains(&done.strip_prefix(PREPARED).unwrap_or(&done)),
                "{text}: {done}"
            );
        }
        assert_eq!(server.run("SELECT pieces, token FROM stock;").unwrap(), "99|42\n", "{token}");
    }
    // The statement for a row that may be missing keeps the same rule.
    assert_eq!(run("EXECUTE insert(7, 42);"), "99\n");
    assert_eq!(run("EXECUTE insert(7, 41);"), "");
    assert_eq!(run("EXECUTE insert(8, 41);").lines().count(), 1);
    assert_eq!(run("EXECUTE insert(8, 40);"), "");
}

#[test]
fn mariadb_refuses_a_late_write() {
    needs!(MARIADB);
    let server = MariaDb::start().unwrap();
    let [column, check, show, write] = blocks("MySQL and MariaDB", "sql").try_into().unwrap();
    server.run(&format!("{TABLE}\n{column}")).unwrap();
    // A transaction of the page's statements with literals for parameters, in their order.
    let run = |statement: &str, values: &[u64]| {
        let text =
            values.iter().fold(statement.to_owned(), |text, value| text.replacen('?', &value.to_string(), 1));
        server.run(&format!("START TRANSACTION; {text} COMMIT;")).unwrap()
    };

    assert_eq!(run(&check, &[7, 41]), "100\n");
    run(&show, &[41, 7]);
    assert_eq!(run(&format!("{check}{write}"), &[7, 41, 99, 41, 7]), "100\n");
    assert_eq!(run(&format!("{check}{write}"), &[7, 41, 99, 41, 7]), "99\n");
    // The next holder has only read, and the first one's check finds no row.
    assert_eq!(run(&format!("{check}{show}"), &[7, 42, 42, 7]), "99\n");
    assert_eq!(run(&check, &[7, 41]), "");
    assert_eq!(server.run("SELECT pieces, token FROM stock;").unwrap(), "99\t42\n");
    server.run("UPDATE stock SET token = 0;").unwrap();
    for token in ["NULL", "''", "'abc'", "-1", "9223372036854775808"] {
        let text = check.replacen('?', "7", 1).replacen('?', token, 1);
        assert_eq!(server.run(&text).unwrap(), "", "{text}");
    }
    server.run("INSERT INTO stock (id, token) VALUES (8, -1);").expect_err("the column refuses it");
}

#[test]
fn sqlite_refuses_a_late_write() {
    let database = Connection::open_in_memory().unwrap();
    let [column, read, write, insert] = blocks("SQLite", "sql").try_into().unwrap();
    database.execute_batch(&format!("{TABLE}\n{column}")).unwrap();
    let ask = |statement: &str, id: i64, token: i64| {
        let mut statement = database.prepare(statement).unwrap();
        let rows = statement.query_map([id, token], |row| row.get::<_, Option<i64>>(0)).unwrap();
        rows.map(Result::unwrap).collect::<Vec<_>>()
    };
    let (read_text, write_text) = (read, write);
    let read = |token: i64| ask(&read_text, 7, token);
    let write = |token: i64, pieces: i64| database.execute(&write_text, [7, token, pieces]).unwrap();

    assert_eq!(read(41), [Some(100)]);
    assert_eq!([write(41, 99), write(41, 99)], [1, 1]);
    assert_eq!(read(42), [Some(99)]);
    assert_eq!((write(41, 1), read(41)), (0, vec![]));
    assert_eq!(write(42, 98), 1);
    for token in ["''", "'abc'", "'43'", "x'3433'", "43.5", "9223372036854775808", "-1", "NULL"] {
        let texts = [&read_text, &write_text, &insert];
        for (text, id) in texts.into_iter().flat_map(|text| ["7", "8"].map(|id| (text, id))) {
            let text = text.replace("?1", id).replace("?2", token).replace("?3", "1");
            let mut statement = database.prepare(&text).unwrap();
            let found = statement.query(()).and_then(|mut rows| Ok(rows.next()?.is_some()));
            // The column makes a number of the text '43'.
            assert!(!found.is_ok_and(|found| found) || token == "'43'", "{text}");
        }
        if token == "'43'" {
            database.execute_batch("DELETE FROM stock WHERE id = 8; UPDATE stock SET token = 42").unwrap();
        }
        let row = |row: &rusqlite::Row<'_>| Ok([row.get::<_, i64>(0)?, row.get(1)?, row.get(2)?]);
        let all = database.query_row("SELECT count(*), sum(pieces), max(token) FROM stock", (), row);
        assert_eq!(all, Ok([1, 98, 42]), "{token}");
    }
    // The statement for a row that may be missing keeps the same rule.
    assert_eq!([ask(&insert, 7, 42), ask(&insert, 7, 41)], [vec![Some(98)], vec![]]);
    assert_eq!([ask(&insert, 8, 41), ask(&insert, 8, 40)], [vec![None], vec![]]);
}

#[test]
fn redis_refuses_a_late_write() {
    needs!(REDIS);
    let server = Redis::start(&Config::new()).unwrap();
    let [script] = blocks("Redis", "lua").try_into().unwrap();
    let run = |arguments: &[&str]| {
        let mut client = Command::new("redis-cli");
        let output = client.args(["-u", &server.url()]).args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let write = |token: &str, value: &str| {
        run(&["EVAL", &script, "2", "{stock/42}", "{stock/42}:token", token, value])
    };

    // One more digit is a greater number, also beyond 2^53.
    assert_eq!(write("9999999999999999999", "1"), "1\n");
    assert_eq!(write("10000000000000000000", "2"), "1\n");
    assert_eq!(write("10000000000000000000", "3"), "1\n");
    assert_eq!(write("9999999999999999999", "late"), "0\n");
    assert_eq!(write("10000000000000000001", "4"), "1\n");
    assert_eq!(write("10000000000000000000", "late"), "0\n");
    for token in ["", "abc", "-1", "42abc", "999999999999999999999"] {
        assert!(write(token, "late").contains("this is no fencing token"), "{token}");
    }
    assert_eq!(run(&["GET", "{stock/42}"]), "4\n");

    let (check, _) = script.split_once("redis.call('SET', KEYS[1], ARGV[2])").unwrap();
    let reading = format!("{check}return redis.call('GET', KEYS[1])");
    let read = |token: &str| run(&["EVAL", &reading, "2", "{stock/42}", "{stock/42}:token", token]);
    // The next holder has only read, and the late write is refused already.
    assert_eq!(read("10000000000000000002"), "4\n");
    assert_eq!(write("10000000000000000001", "late"), "0\n");
    assert_eq!(read("10000000000000000001"), "0\n");
}

#[test]
fn a_file_refuses_a_late_write() {
    let folder = TempDir::new("tokens").unwrap();
    let [page] = blocks("Files", "sh").try_into().unwrap();
    let (make, start) = page.rsplit_once('\n').unwrap();
    assert_eq!(start, "fencepost run report -- bash write.sh");
    let run = |text: &str, token: Option<&str>| {
        let mut shell = Command::new("bash");
        shell.args(["-c", text]).current_dir(folder.path()).env_remove("FENCEPOST_TOKEN");
        shell.envs(token.map(|token| ("FENCEPOST_TOKEN", token)));
        shell.output().unwrap().status.success()
    };
    assert!(run(make, None));
    let write = |token: Option<&str>| run("bash write.sh", token);
    let seen = || fs::read_to_string(folder.path().join("report.token")).unwrap();
    let no_tokens = [None, Some(""), Some("abc"), Some("42abc"), Some("-1"), Some("9223372036854775808")];
    for token in no_tokens {
        assert!(!write(token), "{token:?}");
    }
    assert!(!folder.path().join("report.txt").exists() && !folder.path().join("report.token").exists());
    for (token, written) in [("41", true), ("41", true), ("43", true), ("42", false), ("100", true)] {
        assert_eq!(write(Some(token)), written, "{token}");
    }
    for token in no_tokens {
        assert!(!write(token), "{token:?}");
    }
    assert_eq!(seen(), "100\n");
    // Of two writers at the same moment the later holder's report stays.
    for early in (101..121).step_by(2) {
        let [early, later] = [early, early + 1].map(|token: u32| token.to_string());
        std::thread::scope(|scope| {
            scope.spawn(|| write(Some(&early)));
            assert!(write(Some(&later)), "no later holder was here");
        });
        assert_eq!(seen(), format!("{later}\n"));
    }
    // A file without a token stops all writers.
    for text in ["", "abc"] {
        fs::write(folder.path().join("report.token"), text).unwrap();
        assert!(!write(Some("201")), "{text:?}");
        assert_eq!(seen(), text);
    }
}
