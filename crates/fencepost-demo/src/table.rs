//! `fencepost demo table`: the lock of the tutorials in a database table, beside fencepost on SQLite, and beside a row lock where
//! PostgreSQL is there.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fencepost::Holder;
use serde::Serialize;
use tokio::time::sleep;

use crate::Demo;
#[cfg(feature = "postgres")]
use crate::row_locks;
use crate::rows::{Recipe, Rows};
use crate::stage::{self, Failure, Stage};

pub(crate) const DEMO: Demo = Demo {
    name: "table",
    summary: "a lock in a database table, as tutorials build it: a crash, a cleaner that frees a lock that is held, and two processes that are one owner",
    run,
    part,
};

/// The age at which the cleaner deletes a row, and the lease of fencepost.
const LEASE: Duration = Duration::from_millis(800);
/// The same in the short form.
const SHORT_LEASE: Duration = Duration::from_millis(300);
/// How long a process may take.
const LIMIT: Duration = Duration::from_secs(20);
/// How often a waiter looks.
const POLL: Duration = Duration::from_millis(10);
/// The name of the lock.
const NAME: &str = "fencepost-demo/table";

/// The recipe that is played where `-b` names a PostgreSQL.
const ROW_LOCK: &str = "for-update";

/// The recipes, and what each is.
const RECIPES: [(&str, &str); 5] = [
    ("unique-key", "INSERT and DELETE. A crash leaves the row, and nobody gets the lock any more."),
    ("cleaner", "Old rows are deleted. The row of a holder that works for longer is deleted, too: two hold."),
    (
        "host-and-thread",
        "The owner is a host and a thread, and may lock again. Two processes of a host are one owner.",
    ),
    (
        ROW_LOCK,
        "SELECT … FOR UPDATE in PostgreSQL. The lock is the transaction: it must stay open for all of the work.",
    ),
    ("fencepost", "The lock ends with its process, is renewed while it lives, and has one holder."),
];

/// The answers of a recipe to the four questions.
#[derive(Serialize, PartialEq, Eq)]
struct Facts {
    recipe: &'static str,
    free_after_a_crash: bool,
    one_holder_if_it_is_slow: bool,
    owner_may_lock_again: bool,
    one_holder_if_a_second_process_asks: bool,
}

fn run(stage: &Stage) -> Result<bool, Failure> {
    let lease = if stage.options.short { SHORT_LEASE } else { LEASE };
    stage.picture.say(&format!(
        "A lock in a table of a SQLite file, in three steps, and fencepost on SQLite. The cleaner deletes rows that are older than\n\
         {} ms, and the lease of fencepost is as long. A holder works for twice as long.\n",
        lease.as_millis(),
    ));
    let mut as_told = true;
    let recipes = RECIPES.into_iter().filter(|(recipe, _)| *recipe != ROW_LOCK || has_row_locks(stage));
    for (recipe, _) in recipes.clone() {
        let row = stage.picture.row(recipe, 4);
        let facts = match Recipe::of(recipe) {
            Some(built) => {
                Tables { stage, recipe: built, lease, file: stage.folder().join(recipe) }.play(recipe)?
            }
            #[cfg(feature = "postgres")]
            None if recipe == ROW_LOCK => row_lock(stage, lease)?,
            None => stage::runtime()?.block_on(fencepost(stage, recipe, lease))?,
        };
        as_told &= facts == told(recipe);
        let text = [
            (facts.free_after_a_crash, "free after a crash", "STUCK after a crash"),
            (facts.one_holder_if_it_is_slow, "one slow holder", "TWO HOLD if one is slow"),
            (facts.owner_may_lock_again, "reentrant", "waits for itself"),
            (facts.one_holder_if_a_second_process_asks, "excludes processes", "TWO PROCESSES HOLD"),
        ];
        let text: Vec<_> =
            text.iter().map(|(is_good, good, bad)| if *is_good { *good } else { *bad }).collect();
        stage.picture.end(row, &text.join("; "), &facts);
    }
    stage.picture.say("");
    for (recipe, what) in recipes {
        stage.picture.say(&format!("  {recipe:<18} {what}"));
    }
    Ok(stage.end(as_told, "Each step of the table closed a hole and opened another one. The page docs/demos/table.md says what a table needs."))
}

/// The answers as they are told.
fn told(recipe: &'static str) -> Facts {
    let is = |recipes: &[&str]| recipes.contains(&recipe);
    Facts {
        recipe,
        free_after_a_crash: !is(&["unique-key"]),
        one_holder_if_it_is_slow: is(&["unique-key", ROW_LOCK, "fencepost"]),
        owner_may_lock_again: is(&["host-and-thread", ROW_LOCK, "fencepost"]),
        one_holder_if_a_second_process_asks: !is(&["host-and-thread"]),
    }
}

/// The lock of a recipe in tables: each scene has a file of its own.
struct Tables<'a> {
    stage: &'a Stage,
    recipe: Recipe,
    lease: Duration,
    file: PathBuf,
}

impl Tables<'_> {
    fn play(&self, recipe: &'static str) -> Result<Facts, Failure> {
        Ok(Facts {
            recipe,
            free_after_a_crash: self.is_free_after_a_crash()?,
            one_holder_if_it_is_slow: !self.has_two_if_one_is_slow()?,
            owner_may_lock_again: self.may_lock_again()?,
            one_holder_if_a_second_process_asks: !self.is_shared_by_processes()?,
        })
    }

    fn rows(&self, scene: &str) -> Result<(Rows, PathBuf), Failure> {
        let file = self.file.with_extension(format!("{scene}.db"));
        Ok((Rows::open(&file, self.recipe)?, file))
    }

    fn is_free_after_a_crash(&self) -> Result<bool, Failure> {
        let (rows, file) = self.rows("crash")?;
        ask_process(self.stage, self.recipe.name(), &file)?;
        let until = Instant::now() + 2 * self.lease;
        loop {
            // Taken before the cleaner runs, because a busy machine may let that time pass behind it.
            let is_last = Instant::now() >= until;
            rows.clean(self.lease)?;
            if rows.lock("another host")? {
                return Ok(true);
            }
            if is_last {
                return Ok(false);
            }
            std::thread::sleep(POLL);
        }
    }

    fn has_two_if_one_is_slow(&self) -> Result<bool, Failure> {
        let (rows, _) = self.rows("slow")?;
        rows.lock("slow host")?;
        // The slow holder is in the middle of its work here.
        std::thread::sleep(self.lease);
        rows.clean(self.lease)?;
        rows.lock("another host")
    }

    fn may_lock_again(&self) -> Result<bool, Failure> {
        let (rows, _) = self.rows("again")?;
        rows.lock(&owner())?;
        let again = rows.lock(&owner())?;
        rows.unlock(&owner())?;
        Ok(again)
    }

    fn is_shared_by_processes(&self) -> Result<bool, Failure> {
        let (rows, file) = self.rows("processes")?;
        rows.lock(&owner())?;
        ask_process(self.stage, self.recipe.name(), &file)
    }
}

/// The same scenes with fencepost.
async fn fencepost(stage: &Stage, recipe: &'static str, lease: Duration) -> Result<Facts, Failure> {
    let (one, other) =
        (stage::connect_to(&stage.backend()).await?, stage::connect_to(&stage.backend()).await?);
    let ttl = lease.max(one.capabilities().min_ttl);
    let (mutex, of_another) = (one.mutex(NAME)?, other.mutex(NAME)?);
    ask_process(stage, recipe, Path::new(""))?;
    // The crashed process has held the lock: it is free now, or when its lease has ended.
    let free = of_another.try_lock().ttl(ttl).wait(2 * ttl).await?;
    let free_after_a_crash = free.is_some();
    drop(free);

    let slow = mutex.lock().ttl(ttl).wait(LIMIT).await?;
    sleep(2 * ttl).await;
    let second = of_another.try_lock().ttl(ttl).await?;
    // On a machine that was busy for a whole lease, the slow holder knows that it has lost the lock.
    let has_two = second.is_some() && slow.ensure_held().is_ok();
    drop((second, slow));

    let holder = Holder::new();
    let outer = mutex.lock().wait(LIMIT).holder(&holder).reentrant().await?;
    let inner = mutex.lock().wait(LIMIT).holder(&holder).reentrant().await;
    let owner_may_lock_again = inner.is_ok();
    let is_shared = ask_process(stage, recipe, Path::new(""))?;
    drop((inner, outer));
    one.close().await;
    other.close().await;
    Ok(Facts {
        recipe,
        free_after_a_crash,
        one_holder_if_it_is_slow: !has_two,
        owner_may_lock_again,
        one_holder_if_a_second_process_asks: !is_shared,
    })
}

/// Returns whether the engine of `-b` has row locks, and this build a client for it.
fn has_row_locks(stage: &Stage) -> bool {
    let url = stage.backend();
    cfg!(feature = "postgres") && ["postgres:", "postgresql:"].iter().any(|scheme| url.starts_with(scheme))
}

/// The same scenes with a row lock.
#[cfg(feature = "postgres")]
fn row_lock(stage: &Stage, lease: Duration) -> Result<Facts, Failure> {
    let ask = |table: &str| ask_process(stage, ROW_LOCK, Path::new(table));
    let answers = stage::runtime()?.block_on(row_locks::play(&stage.backend(), lease, ask))?;
    let [
        free_after_a_crash,
        one_holder_if_it_is_slow,
        owner_may_lock_again,
        one_holder_if_a_second_process_asks,
    ] = answers;
    Ok(Facts {
        recipe: ROW_LOCK,
        free_after_a_crash,
        one_holder_if_it_is_slow,
        owner_may_lock_again,
        one_holder_if_a_second_process_asks,
    })
}

/// Starts a process that asks for the lock once, and ends without an unlock. Returns whether it got the lock.
fn ask_process(stage: &Stage, recipe: &str, file: &Path) -> Result<bool, Failure> {
    let mut process = stage.start(&[recipe, &file.to_string_lossy()])?;
    Ok(process.wait(Instant::now() + LIMIT, || {})?.trim() == "locked")
}

/// The owner of the tutorials: the host and the thread.
fn owner() -> String {
    let host = nix::unistd::gethostname().unwrap_or_default();
    format!("{}/{}", host.to_string_lossy(), std::thread::current().name().unwrap_or_default())
}

/// A process that asks once, and ends as one that crashes: nothing is unlocked.
fn part(arguments: &[String]) -> Result<(), Failure> {
    let [recipe, file] = arguments else {
        return Err(Failure::usage("two arguments are expected"));
    };
    let mut kept = None;
    #[cfg(feature = "postgres")]
    let mut transaction = None;
    let runtime = stage::runtime()?;
    let is_locked = match Recipe::of(recipe) {
        Some(recipe) => Rows::open(Path::new(file), recipe)?.lock(&owner())?,
        #[cfg(feature = "postgres")]
        None if recipe == ROW_LOCK => runtime.block_on(async {
            let (is_locked, client) = row_locks::ask(&stage::url()?, file).await?;
            transaction = Some(client);
            Ok::<_, Failure>(is_locked)
        })?,
        None => runtime.block_on(async {
            let locks = stage::connect().await?;
            kept = locks.mutex(NAME)?.try_lock().await?;
            Ok::<_, Failure>(kept.is_some())
        })?,
    };
    println!("{}", if is_locked { "locked" } else { "busy" });
    // Without this, the guard's drop would release the lock.
    std::process::exit(0);
}
