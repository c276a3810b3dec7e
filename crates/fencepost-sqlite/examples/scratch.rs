use fencepost_core::{Locks, Registry};
use std::time::*;
fn main() {
    let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let args: Vec<String> = std::env::args().collect();
    rt.block_on(async {
        let path = "/tmp/sqbench.db";
        if args[1] != "hand" {
        for e in ["", "-wal", "-shm"] { let _ = std::fs::remove_file(format!("{path}{e}")); }
        }
        let dur = args.get(2).cloned().unwrap_or("normal".into());
        let locks = Locks::builder().connect(&Registry::new().with("sqlite", fencepost_sqlite::open), &format!("sqlite:{path}?durability={dur}")).await.unwrap();
        let m = locks.mutex("stock/42").unwrap();
        match args[1].as_str() {
        "un" => {
        let n = if dur=="full" {500} else {20000};
        let floor = {
            let p = "/tmp/sqfloor.db"; for e in ["", "-wal", "-shm"] { let _ = std::fs::remove_file(format!("{p}{e}")); }
            rusqlite::Connection::open(p).unwrap()
        };
        floor.pragma_update(None, "journal_mode", "wal").unwrap();
        floor.pragma_update(None, "synchronous", &dur).unwrap();
        floor.execute_batch("create table t(k text primary key, v integer) without rowid; insert into t values('a',0)").unwrap();
        let p50 = |mut v: Vec<f64>| { v.sort_by(|a,b|a.total_cmp(b)); v[v.len()/2] };
        for _ in 0..(if std::env::var("ONLY").is_ok() {30} else {3}) {
            let mut v = vec![];
            for _ in 0..n { let t = Instant::now(); for _ in 0..2 {
              floor.prepare_cached("begin immediate").unwrap().execute([]).unwrap(); floor.prepare_cached("update t set v=v+1 where k=?1").unwrap().execute(["a"]).unwrap(); floor.prepare_cached("commit").unwrap().execute([]).unwrap();
            } v.push(t.elapsed().as_nanos() as f64/1e3); }
            let a = p50(v);
            let mut v = vec![];
            for _ in 0..n { let t = Instant::now(); let g = m.lock().await.unwrap(); g.release().await.unwrap(); v.push(t.elapsed().as_nanos() as f64/1e3); }
            let b = p50(v);
            println!("floor {a:.2} ours {b:.2} ratio {:.3}", b/a);
        }
        }
        "ours" => { for _ in 0..300000 { let g = m.lock().await.unwrap(); g.release().await.unwrap(); } }
        "hand" => {
            // contended loop: args[3] seconds; print handoffs
            let end = Instant::now() + Duration::from_secs(args[3].parse().unwrap());
            let mut n = 0; let mut lat = vec![];
            while Instant::now() < end { let t = Instant::now(); let g = m.lock().await.unwrap(); lat.push(t.elapsed().as_nanos() as f64/1e3); g.release().await.unwrap(); n += 1; }
            lat.sort_by(|a,b|a.total_cmp(b));
            println!("{n} grants, wait p50 {:.0} p99 {:.0} max {:.0} us", lat[n/2], lat[n*99/100], lat[n-1]);
        }
        "hold" => {
            let g = m.lock().await.unwrap();
            std::thread::sleep(Duration::from_secs(args[3].parse().unwrap()));
            g.release().await.unwrap();
        }
        _ => panic!(),
        }
        locks.close().await;
    });
}
