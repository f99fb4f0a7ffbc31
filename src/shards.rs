//! Shards: the ledgers of a kind, the names of ledgers, and the places of jobs in them.
//!
//! A [`Layout`] says how many shards a kind has; [`shard_of`] chooses the shard of a job,
//! [`server_of`] the server of a shard, and `subject` names the ledger so that shards spread evenly
//! over the slots of a cluster. `docs/shards.md` describes the whole.

use std::fmt;

use crc::{CRC_16_XMODEM, CRC_32_ISO_HDLC, Crc};

use crate::key::Kind;
use crate::time::UnixUs;

/// The largest number of shards of a kind.
pub const MAX_SHARDS: u16 = 256;

/// The checksum that chooses a job's shard: the CRC-32 of zip, gzip and PNG, because every language
/// has it at hand.
static OF_IDS: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);

/// The checksum by which a cluster chooses the slot of a key:
/// <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#key-distribution-model>
static OF_SLOTS: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// The number of slots of a cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// The largest distance, in slots, of a ledger from its best slot. With [`MAX_SHARDS`] the ledgers
/// are twice that far apart, and a name that fits is found after some 250 tries.
pub(crate) const TOLERANCE: u16 = 32;

/// The shard, from 0, of the job with this id in a kind of `shards` shards.
///
/// It is a CRC-32 modulo the number of shards: the variant of zip, gzip and PNG (`zlib.crc32` in
/// Python and Node, `crc32` in PHP, `java.util.zip.CRC32`, `crc32.ChecksumIEEE` in Go). The
/// checksum is taken over the id; or, if the id has a tilde `~` that is not its first character,
/// over the text before the first tilde. So `app1:trans:notice:7~1615` and
/// `app1:trans:notice:7~1616` share a shard, whatever the number of shards.
///
/// ```
/// // 0x42E143EB modulo 4
/// assert_eq!(keyfall::shard_of("1615283234", 4), 3);
/// assert_eq!(keyfall::shard_of("7~1615", 4), keyfall::shard_of("7~1616", 4));
/// ```
///
/// # Panics
/// If `shards` is 0.
pub fn shard_of(id: &str, shards: u16) -> u16 {
    let decides = match id.split_once('~') {
        Some((hint, _)) if !hint.is_empty() => hint,
        _ => id,
    };
    let sum = OF_IDS.checksum(decides.as_bytes());
    u16::try_from(sum % u32::from(shards)).expect("less than a u16")
}

/// The server, from 0, that stores this shard of a kind, `app:module:biz`, where jobs are spread
/// over `servers` [independent servers](crate::Client::builder).
///
/// It is the CRC-32 of the kind, as in [`shard_of`], plus the number of the shard, modulo the
/// number of servers. So a kind with as many shards as there are servers is on all of them.
///
/// ```
/// // 0x13ECC641 modulo 2, and the next ones in turn
/// assert_eq!(keyfall::server_of("app1:trans:notice", 0, 2), 1);
/// assert_eq!(keyfall::server_of("app1:trans:notice", 1, 2), 0);
/// ```
///
/// # Panics
/// If `servers` is 0.
pub fn server_of(kind: &str, shard: u16, servers: u16) -> u16 {
    let first = OF_IDS.checksum(kind.as_bytes()) % u32::from(servers);
    let server = (first + u32::from(shard)) % u32::from(servers);
    u16::try_from(server).expect("less than a u16")
}

/// The name of a ledger: `app:module:biz/0` for the first shard, and `app:module:biz/3.17` for
/// shard 3, with a number behind it that puts the ledgers of a kind far apart in a cluster.
///
/// The first ledger is in the slot of its name. The second is opposite to it, the next ones halfway
/// between, and so on: any number of them is spread evenly, and keeps its names when it grows.
/// Costs up to some hundred checksums, so callers keep the result.
pub(crate) fn subject(kind: &Kind, shard: u16) -> String {
    let first = format!("{kind}/0");
    if shard == 0 {
        return first;
    }
    // The bits in reverse, as a fraction of all slots: 1/2, 1/4, 3/4, 1/8 …
    let best = slot_of(first.as_bytes()) + shard.reverse_bits() / (u16::MAX / SLOTS + 1);
    let mut names = (0_u32..).map(|salt| format!("{kind}/{shard}.{salt}"));
    names
        .find(|name| {
            let apart = (slot_of(name.as_bytes()) + SLOTS - best % SLOTS) % SLOTS;
            apart.min(SLOTS - apart) <= TOLERANCE
        })
        .expect("one of many names fits")
}

/// The kind and the shard of the ledger with this name. `None` if it is no such name.
pub(crate) fn of_subject(subject: &str) -> Option<(&str, u16)> {
    let (kind, shard) = subject.split_once('/')?;
    let number = shard.split_once('.').map_or(shard, |(number, _)| number);
    Some((kind, number.parse().ok()?))
}

/// The slot of a key with this hash tag, 0 to 16,383.
pub(crate) fn slot_of(tag: &[u8]) -> u16 {
    OF_SLOTS.checksum(tag) % SLOTS
}

/// The shards of a kind. Written as `shards`, `shards epoch`, or `shards epoch from`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Grows with each change; 0 before the first. Each ledger stores the layout that it is part
    /// of.
    pub(crate) epoch: u64,
    /// The number of shards, 1 to [`MAX_SHARDS`].
    pub(crate) shards: u16,
    /// The number of shards before the change, as long as jobs may still be in their old places.
    pub(crate) from: Option<u16>,
}

/// A ledger, and the layout by which a call looks for a job in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShardRef {
    /// The shard, from 0.
    pub(crate) shard: u16,
    /// The epoch of the layout; a ledger with another epoch refuses the call.
    pub(crate) epoch: u64,
    /// Whether this is an old place: by this layout the job belongs to another ledger, and stays in
    /// this one only as long as it runs.
    pub(crate) is_old: bool,
}

impl Layout {
    /// The layout of a kind by default: one shard.
    pub(crate) const FIRST: Layout = Layout {
        epoch: 0,
        shards: 1,
        from: None,
    };

    /// Reads the form that [`Display`](fmt::Display) writes. `None` for any other text.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let count = |word: &str| {
            let count = word.parse().ok()?;
            (1..=MAX_SHARDS).contains(&count).then_some(count)
        };
        let shards = count(words.next()?)?;
        let epoch = words.next().map_or(Some(0), |word| word.parse().ok())?;
        let from = match words.next() {
            None => None,
            Some(word) => Some(count(word)?),
        };
        words.next().is_none().then_some(Layout {
            epoch,
            shards,
            from,
        })
    }

    /// Whether this layout is a later state of the kind than `other`: a higher epoch, or the same
    /// one after all jobs have moved.
    pub(crate) fn follows(self, other: Layout) -> bool {
        (self.epoch, self.from.is_none()) > (other.epoch, other.from.is_none())
    }

    /// The number of ledgers that may hold jobs, including the ledgers that jobs are leaving.
    pub(crate) fn ledgers(self) -> u16 {
        self.shards.max(self.from.unwrap_or(0))
    }

    /// The ledger that the job with this id belongs to.
    pub(crate) fn place_of(self, id: &str) -> ShardRef {
        self.place(shard_of(id, self.shards))
    }

    /// The ledger of this shard, as a part of this layout.
    pub(crate) fn place(self, shard: u16) -> ShardRef {
        ShardRef {
            shard,
            epoch: self.epoch,
            is_old: false,
        }
    }

    /// The ledger of this shard, as a ledger that jobs leave by this layout.
    pub(crate) fn old_place(self, shard: u16) -> ShardRef {
        ShardRef {
            is_old: true,
            ..self.place(shard)
        }
    }

    /// The old place of the job with this id, where it may still be. `None` if no change is under
    /// way, or the job keeps its place.
    pub(crate) fn old_place_of(self, id: &str) -> Option<ShardRef> {
        let old = shard_of(id, self.from?);
        (old != shard_of(id, self.shards)).then(|| self.old_place(old))
    }

    /// The layout at the beginning of a change to this number of shards.
    pub(crate) fn to(self, shards: u16) -> Self {
        Layout {
            epoch: self.epoch + 1,
            shards,
            from: Some(self.shards),
        }
    }

    /// The same, with an epoch of at least the time `now` in seconds. A dropped kind may come
    /// again, and a client may still use a layout of its earlier life: no epoch of that life is as
    /// high.
    pub(crate) fn to_at(self, shards: u16, now: UnixUs) -> Self {
        let to = self.to(shards);
        Layout {
            epoch: to.epoch.max(now.0 / 1_000_000),
            ..to
        }
    }

    /// The layout at the end of a change, when all jobs are in their new places.
    pub(crate) fn settled(self) -> Self {
        Layout { from: None, ..self }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.epoch, self.from) {
            (0, None) => write!(f, "{}", self.shards),
            (epoch, None) => write!(f, "{} {epoch}", self.shards),
            (epoch, Some(from)) => write!(f, "{} {epoch} {from}", self.shards),
        }
    }
}

/// The form that scripts read: the epoch, with a `-` behind it for an old place.
impl fmt::Display for ShardRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.epoch, if self.is_old { "-" } else { "" })
    }
}

#[cfg(all(test, feature = "worker"))]
mod tests {
    use super::*;

    #[test]
    fn ids_spread_evenly_and_equal_hints_share_a_shard() {
        for shards in [2, 3, 4, 32, MAX_SHARDS] {
            let mut counts = vec![0_u32; usize::from(shards)];
            for number in 0..100_000 {
                counts[usize::from(shard_of(&format!("1615{number}"), shards))] += 1;
            }
            let share = 100_000 / u32::from(shards);
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(
                least * 2 > share && *most < share * 2,
                "{shards}: {least} to {most} of {share}"
            );
        }
        // By `zlib.crc32` of Python; a change would move the jobs of all users.
        assert_eq!([shard_of("7", 7), shard_of("7~1615", 7)], [4, 4]);
        assert_eq!(shard_of("~7", 7), 1);
        let of_whole_ids: std::collections::HashSet<u16> = (0..100)
            .map(|number| shard_of(&format!("~{number}"), 32))
            .collect();
        assert!(of_whole_ids.len() > 16);
    }

    #[test]
    fn the_ledgers_of_a_kind_lie_evenly_over_the_slots() {
        for kind in ["app1:trans:notice", "a:b:c", "shop:order:expire"] {
            let kind = Kind::parse(kind).unwrap();
            for shards in [2_u16, 3, 4, 6, 8, 32, 256] {
                let mut slots: Vec<u16> = (0..shards)
                    .map(|shard| slot_of(subject(&kind, shard).as_bytes()))
                    .collect();
                slots.sort_unstable();
                slots.push(slots[0] + SLOTS);
                let widest = slots
                    .windows(2)
                    .map(|pair| pair[1] - pair[0])
                    .max()
                    .unwrap();
                // A power of two leaves equal gaps; other numbers leave some gaps that are half as
                // wide.
                let fair = SLOTS / shards.next_power_of_two()
                    * if shards.is_power_of_two() { 1 } else { 2 };
                assert!(
                    widest <= fair + 2 * TOLERANCE,
                    "{kind} in {shards}: {widest}"
                );
            }
        }
    }

    /// Ledgers of these names exist: a change would hide their jobs.
    #[test]
    fn names_and_servers_of_ledgers_never_change() {
        let kind = Kind::parse("app1:trans:notice").unwrap();
        let names = [
            "0", "1.15", "2.68", "3.58", "4.157", "5.570", "6.61", "7.46",
        ];
        for (shard, name) in (0..).zip(names) {
            assert_eq!(subject(&kind, shard), format!("app1:trans:notice/{name}"));
        }
        let servers =
            |of: u16| [0, 1, 2, 3, 5].map(|shard| server_of("app1:trans:notice", shard, of));
        assert_eq!(servers(1), [0; 5]);
        assert_eq!(servers(3), [2, 0, 1, 2, 1]);
        assert_eq!(servers(5), [3, 4, 0, 1, 3]);
    }

    #[test]
    fn slots_agree_with_redis() {
        // The expected values are from CLUSTER KEYSLOT.
        assert_eq!(slot_of(b"123456789"), 12_739);
        assert_eq!(slot_of(b"foo"), 12_182);
    }

    #[test]
    fn the_name_of_a_ledger_has_its_kind_and_shard() {
        let kind = Kind::parse("app1:trans:notice").unwrap();
        assert_eq!(subject(&kind, 0), "app1:trans:notice/0");
        for shard in [0, 1, 17, 255] {
            let subject = subject(&kind, shard);
            assert_eq!(
                of_subject(&subject),
                Some((kind.as_str(), shard)),
                "{subject}"
            );
        }
        assert_eq!(of_subject("app1:trans:notice"), None);
        assert_eq!(of_subject("app1:trans:notice/x"), None);
    }

    #[test]
    fn a_layout_is_written_as_it_is_read() {
        for text in ["1", "4 1", "4 1 1", "2 7 256"] {
            assert_eq!(Layout::parse(text).unwrap().to_string(), text);
        }
        for text in ["", "0", "257", "x", "4 x", "4 1 0", "4 1 1 1", "4  1"] {
            assert_eq!(Layout::parse(text), None, "{text:?}");
        }
        let moving = Layout::FIRST.to(4);
        assert_eq!(moving.to_string(), "4 1 1");
        assert!(moving.follows(Layout::FIRST) && moving.settled().follows(moving));
        assert!(!moving.follows(moving) && !moving.follows(moving.settled()));
        assert!(moving.settled().to(2).follows(moving.settled()));
        assert_eq!(moving.settled().to(2).ledgers(), 4);
    }

    #[test]
    fn a_job_has_an_old_place_only_during_a_reshard() {
        let moving = Layout::FIRST.to(4);
        let ids: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        for id in &ids {
            let place = moving.place_of(id);
            let old = moving.old_place_of(id);
            assert_eq!(old.is_some(), place.shard != 0);
            assert!(old.is_none_or(|old| old.shard == 0 && old.is_old));
            assert_eq!(moving.settled().old_place_of(id), None);
        }
        assert_eq!(moving.place(3).to_string(), "1");
        assert_eq!(
            ShardRef {
                shard: 0,
                epoch: 1,
                is_old: true
            }
            .to_string(),
            "1-"
        );
    }

    #[test]
    fn the_epochs_of_a_later_life_are_higher() {
        let now = |seconds: u64| UnixUs(seconds * 1_000_000 + 7);
        let first = Layout::FIRST.to_at(4, now(1000)).settled();
        assert_eq!((first.shards, first.epoch), (4, 1000));
        // Two changes within a second.
        let second = first.to_at(5, now(1000)).settled();
        assert_eq!(second.epoch, 1001);
        // The kind is dropped, and comes again.
        let anew = Layout::FIRST.to_at(4, now(1002));
        assert!(anew.epoch > second.epoch);
    }
}
