//! The watch: one stream for a process, which feeds every folder that somebody waits in.
//!
//! A watch begins at the present. (One that begins at a past revision is served in rounds of 100 ms.) What was there before is
//! read once the server has said that the watch stands, so that nothing falls between. The same is done after every end of the
//! stream, whatever the reason: no revision that may be compacted is ever asked for.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::{Clock, Moment};
use tokio::sync::mpsc;

use crate::error::Failure;
use crate::folder::Folder;
use crate::held;
use crate::keys;
use crate::login::Token;
use crate::member::{Member, Stand};
use crate::net::{RANGE, Watcher};
use crate::proto::{
    Event, KeyValue, RangeRequest, RangeResponse, WatchCancel, WatchCreate, WatchRequest, WatchResponse,
    Watching,
};
use crate::shared::Shared;

/// What the pump is told.
pub(crate) enum Command {
    /// Watch this folder.
    Folder(Arc<Folder>),
    /// Watch for evictions.
    Marks,
    /// Look then for grants that are held for long.
    Grants(Moment),
    /// The client is closed.
    Close,
}

/// How often a folder is read although the watch should tell everything, and how long an idle one is watched.
const ROUND: Duration = Duration::from_secs(5);
const IDLE: Duration = Duration::from_secs(30);
/// Between two tries to open a stream, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// What a watch is for.
#[derive(Clone)]
enum Target {
    Folder(Arc<Folder>),
    Marks,
    /// The key of a grant that is held for long.
    Key(Weak<Member>),
}

/// Why a stream ended.
enum Ended {
    /// It failed.
    Broken(String),
    /// The client is gone or closed.
    Over,
}

/// One stream of watches.
struct Stream {
    epoch: u64,
    requests: mpsc::UnboundedSender<WatchRequest>,
    /// The login that it was opened with.
    token: Option<Token>,
    /// Asked for and not answered: answers come in the order of the questions.
    asked: VecDeque<Target>,
    standing: HashMap<i64, Target>,
    /// Folders among all of these.
    folders: usize,
    /// Members whose watch stands, and whose key has not been read since.
    unread: Vec<Arc<Member>>,
    /// When to look for grants that are held for long.
    look: Moment,
}

/// Keeps a stream open as long as there is something to watch.
pub(crate) async fn pump(shared: Weak<Shared>, clock: Clock, mut commands: mpsc::UnboundedReceiver<Command>) {
    let (mut epoch, mut pause) = (0, PAUSES.0);
    // A client that never locks watches nothing. Folders are in the list of all.
    if matches!(commands.recv().await, Some(Command::Close) | None) {
        return;
    }
    loop {
        let opening = shared
            .upgrade()
            .map(|shared| (Arc::clone(&shared.net), create(keys::marks(&shared.config.prefix))));
        let Some((net, first)) = opening.filter(|(net, _)| !net.is_closed()) else { return };
        epoch += 1;
        let opened = clock.now();
        let ended = match net.watch(&first).await {
            Ok(Watcher { requests, answers, token }) => {
                let asked = VecDeque::from([Target::Marks]);
                let (standing, unread, look) = (HashMap::new(), Vec::new(), Moment::ZERO);
                let mut stream = Stream { epoch, requests, token, asked, standing, folders: 0, unread, look };
                stream.run(&shared, &clock, &mut commands, answers).await
            }
            Err(failure) => Ended::Broken(failure.cause().to_owned()),
        };
        match ended {
            Ended::Over => return,
            Ended::Broken(reason) => tracing::debug!(reason, "the watch ended, watching anew"),
        }
        net.pass_over();
        drop(net);
        // A stream that has stood for a while is made anew at once.
        pause = if clock.now().since(opened) > PAUSES.1 { PAUSES.0 } else { (pause * 2).min(PAUSES.1) };
        clock.sleep_until(clock.now() + pause).await;
    }
}

impl Stream {
    async fn run(
        &mut self,
        shared: &Weak<Shared>,
        clock: &Clock,
        commands: &mut mpsc::UnboundedReceiver<Command>,
        mut answers: tonic::Streaming<WatchResponse>,
    ) -> Ended {
        let Some(strong) = shared.upgrade() else { return Ended::Over };
        let all = strong.all_folders();
        strong.long_held().iter().for_each(|member| self.ask_key(member));
        drop(strong);
        // Those that came while there was no stream are asked for now; what their commands ask for again does no harm.
        let mut told: Vec<Arc<Folder>> = all.clone();
        all.into_iter().for_each(|folder| self.ask(folder));
        let mut round = clock.now() + ROUND;
        loop {
            // With nobody in any folder nothing is done by the clock.
            let next = if self.folders > 0 { round } else { Moment::NEVER }.min(self.look);
            tokio::select! {
                answer = answers.message() => match answer {
                    Ok(Some(answer)) => {
                        if let Err(reason) = self.hear(shared, answer) {
                            return Ended::Broken(reason);
                        }
                    }
                    Ok(None) => return Ended::Broken("the server closed it".to_owned()),
                    Err(status) => return Ended::Broken(status.message().to_owned()),
                },
                command = commands.recv() => match command {
                    Some(Command::Folder(folder)) => {
                        match told.iter().position(|known| Arc::ptr_eq(known, &folder)) {
                            Some(at) => drop(told.swap_remove(at)),
                            None => self.ask(folder),
                        }
                    }
                    Some(Command::Marks) => {}
                    Some(Command::Grants(look)) => self.look = self.look.min(look),
                    Some(Command::Close) | None => return Ended::Over,
                },
                () = clock.sleep_until(next) => {
                    let Some(shared) = shared.upgrade() else { return Ended::Over };
                    let now = clock.now();
                    if now >= self.look {
                        self.look_for_grants(&shared, now);
                    }
                    if now >= round {
                        self.tend(&shared, now);
                        told.clear();
                        round = now + ROUND;
                    }
                }
            }
        }
    }

    fn ask(&mut self, folder: Arc<Folder>) {
        folder.begin(self.epoch);
        let _ = self.requests.send(create(folder.start.clone()));
        self.asked.push_back(Target::Folder(folder));
        self.folders += 1;
    }

    fn ask_key(&mut self, member: &Arc<Member>) {
        let Some(key) = member.key() else { return };
        let create = WatchCreate { key: key.to_vec(), range_end: Vec::new() };
        let _ = self.requests.send(WatchRequest { what: Some(Watching::Create(create)) });
        self.asked.push_back(Target::Key(Arc::downgrade(member)));
    }

    /// Watches the keys of grants that are held for long.
    fn look_for_grants(&mut self, shared: &Shared, now: Moment) {
        let (long, next) = shared.grants.take_long(now);
        self.look = next;
        for member in long {
            if !member.long.swap(true, Ordering::Relaxed) {
                self.ask_key(&member);
            }
        }
    }

    /// The watch `id` is of no use any more.
    fn cancel(&mut self, id: i64) {
        self.standing.remove(&id);
        let _ = self.requests.send(WatchRequest { what: Some(Watching::Cancel(WatchCancel { id })) });
    }

    /// A watch stands: what was there before is read.
    fn stands(&mut self, shared: &Weak<Shared>, id: i64, target: Target) {
        match &target {
            Target::Folder(folder) => read_folder(shared, Arc::clone(folder), self.epoch),
            Target::Marks => read_marks(shared),
            Target::Key(member) => self.unread.extend(member.upgrade()),
        }
        self.standing.insert(id, target);
        let last = !self.asked.iter().any(|target| matches!(target, Target::Key(_)));
        if self.unread.len() >= held::BATCH || last && !self.unread.is_empty() {
            let members: Arc<[_]> = std::mem::take(&mut self.unread).into();
            insist(shared, move |shared| {
                let members = Arc::clone(&members);
                async move { held::read(&shared, &members).await }
            });
        }
    }

    fn hear(&mut self, shared: &Weak<Shared>, answer: WatchResponse) -> Result<(), String> {
        if answer.created {
            let Some(target) = self.asked.pop_front() else { return Err("an answer to nothing".to_owned()) };
            if answer.canceled {
                // A login that is not known any more is told so, and not by the stream's status.
                if let Some(shared) = shared.upgrade() {
                    shared.net.forget_login(self.token.as_ref());
                }
                return Err(answer.reason);
            }
            self.stands(shared, answer.id, target);
            return Ok(());
        }
        if answer.canceled {
            // By us, or because the server has lost track: then everything is read anew.
            return match self.standing.remove(&answer.id) {
                None => Ok(()),
                Some(_) => Err(answer.reason),
            };
        }
        match self.standing.get(&answer.id) {
            Some(Target::Folder(folder)) => {
                if let Some(shared) = shared.upgrade() {
                    let deleted = answer.events.iter().filter(|event| event.kind == 1);
                    deleted.for_each(|event| deleted_key(&shared, event));
                }
                folder.hear(answer.events);
            }
            Some(Target::Marks) => {
                if let Some(shared) = shared.upgrade() {
                    let marks = answer.events.iter().filter(|event| event.kind == 0);
                    marks.filter_map(|event| event.kv.as_ref()).for_each(|kv| marked(&shared, kv));
                }
            }
            Some(Target::Key(_)) => {
                if let (Some(event), Some(shared)) =
                    (answer.events.iter().find(|event| event.kind == 1), shared.upgrade())
                {
                    deleted_key(&shared, event);
                    self.cancel(answer.id);
                }
            }
            None => {}
        }
        Ok(())
    }

    /// Reads what has not been read for long, and lets go of what nobody waits in.
    fn tend(&mut self, shared: &Arc<Shared>, now: Moment) {
        let mut idle = Vec::new();
        for (id, target) in &self.standing {
            let Target::Folder(folder) = target else { continue };
            if folder.close(now.less(IDLE)) {
                shared.forget(folder);
                idle.push(*id);
            } else if folder.is_stale(now.less(ROUND)).is_some() {
                read_folder(&Arc::downgrade(shared), Arc::clone(folder), self.epoch);
            }
        }
        self.folders -= idle.len();
        idle.into_iter().for_each(|id| self.cancel(id));
    }
}

/// Watch all that begins so, from now on.
fn create(start: Vec<u8>) -> WatchRequest {
    let create = WatchCreate { range_end: keys::end(&start), key: start };
    WatchRequest { what: Some(Watching::Create(create)) }
}

fn read_folder(shared: &Weak<Shared>, folder: Arc<Folder>, epoch: u64) {
    insist(shared, move |shared| {
        let folder = Arc::clone(&folder);
        async move {
            let (revision, kvs) = shared.line(&folder.start).await?;
            folder.read(epoch, revision, &kvs, shared.now());
            Ok(())
        }
    });
}

fn read_marks(shared: &Weak<Shared>) {
    insist(shared, |shared| async move {
        let start = keys::marks(&shared.config.prefix);
        let end = keys::end(&start);
        let question = RangeRequest::by_creation(start, end, 0);
        let answer: RangeResponse = shared.net.call(RANGE, question, None).await?;
        answer.kvs.iter().for_each(|kv| marked(&shared, kv));
        Ok(())
    });
}

/// Reads in the background, and again until that works.
fn insist<F: Future<Output = Result<(), Failure>> + Send>(
    shared: &Weak<Shared>,
    read: impl Fn(Arc<Shared>) -> F + Send + 'static,
) {
    let Some(strong) = shared.upgrade() else { return };
    let weak = Weak::clone(shared);
    strong.runtime.spawn(async move {
        let mut pause = PAUSES.0;
        while let Some(shared) = weak.upgrade().filter(|shared| !shared.net.is_closed()) {
            let clock = shared.runtime.clock().clone();
            let Err(failure) = read(shared).await else { return };
            tracing::debug!(error = failure.cause(), "what is watched could not be read, trying again");
            clock.sleep_until(clock.now() + pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    });
}

/// A key was deleted: if it is one of ours, and not by us, its holder has lost it.
fn deleted_key(shared: &Arc<Shared>, event: &Event) {
    let Some(kv) = &event.kv else { return };
    if let Some(member) = keys::number(&kv.key).and_then(|number| shared.owner(number))
        && member.key() == Some(&kv.key)
    {
        held::gone(shared, &member, kv.mod_revision);
    }
}

/// An eviction was noted: of one of ours?
fn marked(shared: &Arc<Shared>, mark: &KeyValue) {
    let Some((number, revision)) = keys::marked(&mark.key) else { return };
    let by = String::from_utf8_lossy(&mark.value);
    match shared.owner(number) {
        Some(member) if member.mark(revision, &by) => shared.evicted(member),
        // It does not know yet when its key was made.
        Some(member) if member.stand() == Stand::Nowhere => {}
        // Whoever it was for has left.
        _ if shared.leases.has(number.0) => {
            let shared = Arc::clone(shared);
            shared.runtime.clone().spawn(async move { shared.unmark(number, revision).await });
        }
        _ => {}
    }
}
