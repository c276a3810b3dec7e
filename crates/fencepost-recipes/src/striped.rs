//! One resource in several segments, each with a lock of its own.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fencepost_core::{Client, Error, Guard, MultiLock, Mutex, Name, Result};

/// A resource in `n` segments, each with a lock of its own: many holders work at once, each on another segment. The stock of a
/// flash sale in 20 parts is one.
///
/// # What is guaranteed
/// - Each segment has the guarantees of [`Mutex`]. Its name is that of the resource and its number: `stock/42#7`.
///
/// # What is not
/// - A segment's lock excludes neither the other segments nor a lock of the resource's own name.
/// - All users give the same `n`. By another one, [`of_key`](StripedLock::of_key) finds other segments.
#[derive(Clone, Debug)]
pub struct StripedLock {
    client: Client,
    name: Name,
    segments: Arc<[Mutex]>,
    counts: Arc<Counts>,
}

#[derive(Default, Debug)]
struct Counts {
    granted: AtomicU64,
    busy: AtomicU64,
}

/// How the segments are used: see [`StripedLock::usage`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Usage {
    /// How many times [`FreeFirst`] found a segment free, or waited for one.
    pub granted: u64,
    /// How many times [`FreeFirst`] found a segment busy. If that is often, more segments help.
    pub busy: u64,
}

impl StripedLock {
    /// The most segments.
    pub const MAX_SEGMENTS: u32 = 4096;

    /// Makes the lock of a resource in `segments` parts. No I/O. All users of a name give the same number.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) for a bad name, a name that leaves no room for the number, or no segment or more than
    /// [`MAX_SEGMENTS`](StripedLock::MAX_SEGMENTS).
    pub fn new(client: &Client, name: &str, segments: u32) -> Result<StripedLock> {
        let name = Name::new(name)?;
        if segments == 0 || segments > Self::MAX_SEGMENTS {
            return Err(Error::invalid("a striped lock has 1 to 4096 segments; give another number").of(name));
        }
        let segment = |number| client.mutex(&format!("{name}#{number}"));
        let segments = (0..segments).map(segment).collect::<Result<Arc<[Mutex]>>>()?;
        Ok(StripedLock { client: client.clone(), name, segments, counts: Arc::default() })
    }

    /// The resource's name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The locks of the segments, by their numbers.
    pub fn segments(&self) -> &[Mutex] {
        &self.segments
    }

    /// Returns the number of the segment of a key: the same in each process and version.
    pub fn of_key(&self, key: impl AsRef<[u8]>) -> usize {
        // FNV-1a, 64 bits. The high half is mixed in, since few segments use the low bits alone.
        let hash = key.as_ref().iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        ((hash ^ (hash >> 32)) % self.segments.len() as u64) as usize
    }

    /// Returns a lock of several segments at once, all or none, in the order that all users keep.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) for a number that is no segment's, or none.
    pub fn several(&self, numbers: impl IntoIterator<Item = usize>) -> Result<MultiLock> {
        let name = |number: usize| {
            let segment = self.segments.get(number);
            let wrong = || Error::invalid(format!("there is no segment {number}")).of(self.name.clone());
            segment.map(|mutex| mutex.name().clone()).ok_or_else(wrong)
        };
        self.client.multi(numbers.into_iter().map(name).collect::<Result<Vec<Name>>>()?)
    }

    /// Returns all segments, free ones first, from a random one on: see [`FreeFirst::next`].
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let locks = fencepost_core::Client::builder().connect(&fencepost_core::Registry::new(), "memory:").await?;
    /// let stock = fencepost_recipes::StripedLock::new(&locks, "stock/42", 4)?;
    /// let mut pieces = [0, 0, 1, 0]; // of each segment, in a database
    /// let mut segments = stock.free_first();
    /// while let Some((segment, guard)) = segments.next().await? {
    ///     if pieces[segment] > 0 {
    ///         pieces[segment] -= 1;
    ///         guard.release().await?;
    ///         break;
    ///     }
    ///     // Sold out: the guard is dropped, and the next one is tried.
    /// }
    /// assert_eq!(pieces, [0; 4]);
    /// # Ok::<(), fencepost_core::Error>(()) }).unwrap();
    /// ```
    pub fn free_first(&self) -> FreeFirst<'_> {
        let count = self.segments.len();
        let mut random = RandomState::new().build_hasher();
        // A process that was forked has the keys of its parent.
        random.write_u32(std::process::id());
        let first = (random.finish() % count as u64) as usize;
        let order = (0..count).map(|number| (first + number) % count).collect();
        FreeFirst { lock: self, order, busy: VecDeque::new() }
    }

    /// Returns how the segments were used by [`free_first`](StripedLock::free_first) of this value and its clones.
    pub fn usage(&self) -> Usage {
        let [granted, busy] =
            [&self.counts.granted, &self.counts.busy].map(|count| count.load(Ordering::Relaxed));
        Usage { granted, busy }
    }
}

/// The segments of a [`StripedLock`], free ones first: see [`StripedLock::free_first`].
#[derive(Debug)]
pub struct FreeFirst<'a> {
    lock: &'a StripedLock,
    /// The segments that were not tried yet.
    order: VecDeque<usize>,
    /// Those that were busy.
    busy: VecDeque<usize>,
}

impl FreeFirst<'_> {
    /// Locks a segment that this has not returned yet, and returns its number and guard: free ones first, and then one after the other
    /// of those that were busy, for which it waits. `None`: it has had all. Release one before you ask for the next.
    ///
    /// # Errors
    /// As for [`Mutex::lock`]. It can be called again.
    ///
    /// # Cancel safety
    /// As for [`Mutex::lock`]. The segment that was asked for is not skipped.
    pub async fn next(&mut self) -> Result<Option<(usize, Guard)>> {
        let counts = &self.lock.counts;
        while let Some(&number) = self.order.front() {
            let answer = self.lock.segments[number].try_lock().await?;
            self.order.pop_front();
            if let Some(guard) = answer {
                counts.granted.fetch_add(1, Ordering::Relaxed);
                return Ok(Some((number, guard)));
            }
            counts.busy.fetch_add(1, Ordering::Relaxed);
            self.busy.push_back(number);
        }
        let Some(&number) = self.busy.front() else { return Ok(None) };
        let guard = self.lock.segments[number].lock().await?;
        self.busy.pop_front();
        counts.granted.fetch_add(1, Ordering::Relaxed);
        Ok(Some((number, guard)))
    }
}
