//! Slot repair: brings stray keys back to the node that serves their slot.
//!
//! The keys of a ledger are copied a few fields at a time, so that no node is blocked for long, and
//! kept aside under names of the same slot. Then they are removed from their old node, and only
//! then `lua/cluster/mend.lua` joins them with the ledger. So an interrupted repair can be
//! repeated: a copy is not used before it is complete, and a key is not copied again after its copy
//! was used.

use std::time::{Duration, Instant};

use redis::{Cmd, Pipeline, Value};

use crate::error::{Error, ErrorKind, Result};
use crate::names::{LEDGER_PARTS, LedgerNames, MARKER};
use crate::store::connections::link::Request;
use crate::store::kinds::split::aside;
use crate::store::kinds::stray_slots::{Primary, Stray, slot_of_ledger};
use crate::store::ledger::script::{FOUND, TOUCH};
use crate::store::lua::lua;
use crate::store::{Server, from_value, unique_id};

/// How many fields or members one call copies or joins.
const AT_ONCE: usize = 100;

/// How long a copy waits for a replica, in milliseconds.
const REPLICA_MS: u64 = 1000;

/// The time limit of one command.
const PATIENCE: Duration = Duration::from_secs(10);

/// The treatment of stray parts of a ledger that is whole on the node that serves it. Such parts
/// are either out of date, from before the slot began to move, or the ledger began anew without
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spares {
    /// They stay where they are, and are reported.
    Leave,
    /// They are joined with the ledger.
    Join,
    /// They are deleted.
    Drop,
}

/// The result of the repair of a slot.
pub(crate) enum SlotOutcome {
    /// All keys are on the node that serves the slot.
    Together,
    /// Some keys are where they were, or aside, for these reasons.
    Left(Vec<String>),
}

/// A ledger of which some or all parts are missing on the node that serves it.
pub(crate) struct MissingPart {
    /// The name of the ledger in wake-ups, such as `app:module:biz/0`.
    pub(crate) ledger: String,
    /// The slot of the ledger.
    pub(crate) slot: u16,
    /// The names of the missing parts, separated by blanks.
    pub(crate) missing: String,
    names: LedgerNames,
}

/// The join of the parts of one ledger. It holds a lock that others respect for half a minute after
/// each step.
struct LedgerJoin<'a> {
    server: &'a Server,
    /// The beginning of the names of its keys.
    start: &'a str,
    /// The key of the lock.
    lock: String,
    /// The random value by which this repair recognises its own lock.
    token: String,
}

/// The repair of one slot: the node that has the keys, and the node that serves the slot.
struct Mending<'a> {
    server: &'a Server,
    slot: u16,
    holder: &'a Primary,
    owner: &'a Primary,
}

impl Server {
    /// Brings the stray keys of a slot to the node that serves it.
    ///
    /// # Errors
    ///
    /// If a node does not answer, or another client repairs the same ledger. A repeat goes on where
    /// this call stopped.
    pub(crate) async fn bring_back(&self, stray: &Stray, spares: Spares) -> Result<SlotOutcome> {
        let Some(owner) = &stray.owner else {
            let why = format!("no node serves the slot {}: see `CLUSTER INFO`", stray.slot);
            return Ok(SlotOutcome::Left(vec![why]));
        };
        let mending = Mending {
            server: self,
            slot: stray.slot,
            holder: &stray.holder,
            owner,
        };
        mending.open().await?;
        let (parts, others): (Vec<_>, Vec<_>) = stray
            .keys
            .iter()
            .partition(|key| self.part_of_ledger(key).is_some());
        let parts = parts.into_iter().filter_map(|key| self.part_of_ledger(key));
        let mut parts: Vec<(&str, &str)> = parts.collect();
        parts.sort_unstable();
        let mut left = Vec::new();
        for parts in parts.chunk_by(|one, other| one.0 == other.0) {
            let joining = LedgerJoin::new(self, parts[0].0);
            let is_spare = joining.is_whole().await?;
            match (is_spare, spares) {
                (true, Spares::Leave) => {
                    left.push(joining.is_left(&format!("the part on {}", stray.holder)));
                }
                (true, Spares::Drop) => {
                    for (start, part) in parts {
                        mending.drop(&format!("{start}{part}")).await?;
                    }
                }
                (false, _) | (true, Spares::Join) => {
                    for (_, part) in parts {
                        mending.move_part(&joining, part).await?;
                    }
                    left.extend(joining.join(!is_spare).await?);
                }
            }
        }
        for key in others {
            left.extend(mending.move_other(key).await?);
        }
        if left.is_empty() {
            mending.at(mending.holder, "STABLE", None).await?;
            return Ok(SlotOutcome::Together);
        }
        Ok(SlotOutcome::Left(left))
    }

    /// Looks for parts that an earlier repair has left aside and, if `joins` is set, joins them.
    /// Parts of a ledger that is whole are only joined by [`Spares::Join`]. Returns a text for each
    /// ledger with parts that are still aside.
    ///
    /// # Errors
    ///
    /// If a node does not answer, or another client repairs one of the ledgers.
    pub(crate) async fn left_over(
        &self,
        joins: bool,
        spares: Spares,
        until: Instant,
    ) -> Result<Vec<String>> {
        let mut left = Vec::new();
        for names in self.all_ledgers(until).await? {
            let start = self.names.start_of_ledger(&names.subject);
            let found = self.count_aside(&start, soon()).await?;
            if found == 0 {
                continue;
            }
            let joining = LedgerJoin::new(self, &start);
            let is_spare = joining.is_whole().await?;
            if joins && (!is_spare || spares == Spares::Join) {
                left.extend(joining.join(!is_spare).await?);
            } else if is_spare {
                left.push(joining.is_left(&format!("{found} keys `{start}mending:…`")));
            } else {
                left.push(format!(
                    "{found} keys `{start}mending:…` are parts of the ledger {}, kept by an \
                     unfinished repair: `keyfall cluster mend --yes` joins them",
                    names.subject
                ));
            }
        }
        Ok(left)
    }

    /// The ledgers of known kinds that lack a part; a ledger with all parts aside counts, too. Each
    /// ledger gets one call, which does not write.
    pub(crate) async fn torn_ledgers(&self, until: Instant) -> Result<Vec<MissingPart>> {
        let mut torn = Vec::new();
        for names in self.all_ledgers(until).await? {
            // The empty name stands for no lane, so the script writes nothing.
            let mut touch = TOUCH.call_on_whole(&[&names.calls], &names);
            touch.arg("").arg("");
            match self.evaluate(&TOUCH, &touch, soon()).await {
                Err(fault) if fault.is_torn() => {
                    let missing = fault.missing().unwrap_or_default().to_owned();
                    torn.push(MissingPart::of(names, missing));
                }
                // No part is there: the ledger is new, or all of it is aside.
                Err(fault) if fault.is_unfounded() => {
                    let start = self.names.start_of_ledger(&names.subject);
                    if self.count_aside(&start, soon()).await? > 0 {
                        torn.push(MissingPart::of(names, LEDGER_PARTS.join(" ")));
                    }
                }
                Err(fault) => return Err(fault.into()),
                Ok(_) => {}
            }
        }
        Ok(torn)
    }

    /// Creates the missing parts of a ledger anew, and so gives up their contents. Returns `false`,
    /// and changes nothing, if a node still has keys of the ledger, or some are aside.
    pub(crate) async fn give_up(&self, gap: &MissingPart, until: Instant) -> Result<bool> {
        let start = self.names.start_of_ledger(&gap.ledger);
        let is_elsewhere = !self.holders(gap.slot, &start, until).await?.is_empty();
        if is_elsewhere || self.count_aside(&start, until).await? > 0 {
            return Ok(false);
        }
        let mut found = FOUND.call(FOUND.fixed_keys);
        found.arg(&gap.names.all()[..]);
        self.evaluate(&FOUND, &found, until).await?;
        tracing::warn!(
            ledger = gap.ledger,
            missing = gap.missing,
            "these parts were given up"
        );
        Ok(true)
    }

    /// The ledgers that some of these keys belong to, by their names in wake-ups, sorted.
    pub(crate) fn ledgers_among(&self, keys: &[Vec<u8>]) -> Vec<String> {
        let parts = keys.iter().filter_map(|key| self.part_of_ledger(key));
        let names = parts.filter_map(|(start, _)| {
            let (_, rest) = start.split_once(":{")?;
            Some(rest.strip_suffix("}:")?.to_owned())
        });
        let mut names: Vec<String> = names.collect();
        names.sort();
        names.dedup();
        names
    }

    /// All ledgers of the kinds that are known; none if the server is not a cluster.
    async fn all_ledgers(&self, until: Instant) -> Result<Vec<LedgerNames>> {
        if !self.is_cluster() {
            return Ok(Vec::new());
        }
        let mut all = Vec::new();
        for kind in self.kinds(until).await? {
            let shards = 0..self.layouts.of(kind.as_str()).ledgers();
            all.extend(shards.map(|shard| self.names.ledger(&kind, shard)));
        }
        Ok(all)
    }

    /// The beginning of the names of the keys of its ledger, and the part that this key is; `None`
    /// if it is no key of a ledger.
    fn part_of_ledger<'a>(&self, key: &'a [u8]) -> Option<(&'a str, &'a str)> {
        let key = std::str::from_utf8(key).ok()?;
        self.names.part_of_ledger(key)
    }
}

/// The deadline of one command that begins now.
fn soon() -> Instant {
    Instant::now() + PATIENCE
}

impl MissingPart {
    /// Describes a ledger by its names and its missing parts.
    fn of(names: LedgerNames, missing: String) -> Self {
        MissingPart {
            ledger: names.subject.clone(),
            slot: slot_of_ledger(&names.subject),
            missing,
            names,
        }
    }
}

impl<'a> LedgerJoin<'a> {
    /// Prepares a join; it takes no lock yet.
    fn new(server: &'a Server, start: &'a str) -> Self {
        LedgerJoin {
            server,
            start,
            lock: format!("{start}mending"),
            token: unique_id(),
        }
    }

    /// Calls one step of `lua/cluster/mend.lua` on keys behind the lock, and returns its word.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if another client has the lock.
    async fn step(&self, keys: &[&str], step: &str, args: &[Vec<u8>]) -> Result<String> {
        let cmd = self.command(keys, step, args);
        let told: String = from_value(self.server.command(&cmd, soon()).await?)?;
        self.unless_busy(&told)?;
        Ok(told)
    }

    fn command(&self, keys: &[&str], step: &str, args: &[Vec<u8>]) -> Cmd {
        let mut cmd = redis::cmd("EVAL");
        // The script of all steps is sent as a whole with each call.
        cmd.arg(lua!("cluster/mend.lua"))
            .arg(1 + keys.len())
            .arg(&self.lock)
            .arg(keys);
        cmd.arg(&self.token).arg(step).arg(args);
        cmd
    }

    fn unless_busy(&self, told: &str) -> Result<()> {
        if told != "busy" {
            return Ok(());
        }
        let text = format!(
            "another process repairs {}, or did so until a moment ago: try again in half a minute",
            self.start
        );
        Err(Error::new(ErrorKind::Unavailable, text))
    }

    /// Whether the node that serves the ledger has all of its parts.
    async fn is_whole(&self) -> Result<bool> {
        let mut look = redis::cmd("EXISTS");
        look.arg(&LEDGER_PARTS.map(|part| format!("{}{part}", self.start))[..]);
        let found: usize = from_value(self.server.command(&look, soon()).await?)?;
        Ok(found == LEDGER_PARTS.len())
    }

    /// The text for parts that stay because the ledger is whole without them.
    fn is_left(&self, what: &str) -> String {
        format!(
            "{what} is left over, since `{}*` is whole on the node that serves its slot: usually \
             that node has taken over a newer copy, and the left-over keys are out of date: drop \
             them; join them only if clients of an older version went on without them",
            self.start
        )
    }

    /// Joins the parts that were kept aside with the ledger. Returns a text for each part that
    /// differs too much. `replaces` is set for a split ledger: it has refused all calls since, so
    /// the parts aside are newer and replace its own.
    async fn join(&self, replaces: bool) -> Result<Vec<String>> {
        self.step(&[], "begin", &[]).await?;
        let mut left = Vec::new();
        // The ledger is whole once its last missing part is there, so the parts that are there come
        // first.
        let mut parts = Vec::new();
        for part in LEDGER_PARTS {
            let mut look = redis::cmd("EXISTS");
            look.arg(format!("{}{part}", self.start));
            let is_there: bool = from_value(self.server.command(&look, soon()).await?)?;
            parts.insert(if is_there { 0 } else { parts.len() }, part);
        }
        for part in parts {
            let [copied, moved] = ["copied", "moved"].map(|state| aside(self.start, state, part));
            // A part with a complete copy is gone from its old node.
            self.step(&[&copied, &moved], "rename", &[]).await?;
            let key = format!("{}{part}", self.start);
            let mode = if replaces { "replace" } else { "join" };
            let words = [part.into(), AT_ONCE.to_string().into(), mode.into()];
            loop {
                let told = self.step(&[&moved, &key], "join", &words).await?;
                match told.strip_prefix("clash ") {
                    Some(name) => {
                        left.push(format!(
                            "{key} and {moved} both have `{name}`, and the values differ: delete \
                             the wrong one, and call this again"
                        ));
                        break;
                    }
                    None if told == "ok" => break,
                    None => {}
                }
            }
        }
        let mut unlock = redis::cmd("DEL");
        unlock.arg(&self.lock);
        self.server.command(&unlock, soon()).await?;
        Ok(left)
    }
}

impl Mending<'_> {
    /// Lets the holder answer commands on its keys of the slot, and the owner on all keys of it.
    async fn open(&self) -> Result<()> {
        let slot = format!("[{}-", self.slot);
        if self.owner.open.iter().any(|it| it.starts_with(&slot)) {
            self.at(self.owner, "STABLE", None).await?;
        }
        let from = Some(self.owner.id.as_str());
        self.at(self.holder, "IMPORTING", from).await
    }

    /// Sets the state of the slot on a node.
    async fn at(&self, node: &Primary, state: &str, other: Option<&str>) -> Result<()> {
        let mut set = redis::cmd("CLUSTER");
        set.arg("SETSLOT").arg(self.slot).arg(state).arg(other);
        self.server.ask_node(&node.node, &set, soon()).await?;
        Ok(())
    }

    /// The answer of the holder, which answers for a slot that it does not serve only behind
    /// `ASKING`.
    async fn held<T: redis::FromRedisValue>(&self, cmd: Cmd) -> Result<T> {
        let mut both = Pipeline::new();
        both.cmd("ASKING").ignore().add_command(cmd);
        let request = Request::Many(&both);
        let link = &self.server.link;
        let answer = link.try_at_once(&self.holder.node, request, soon());
        let (told,): (T,) = from_value(answer.await?.value)?;
        Ok(told)
    }

    /// Moves a part of a ledger to the owner, and keeps it aside there.
    async fn move_part(&self, joining: &LedgerJoin<'_>, part: &str) -> Result<()> {
        let [copying, copied, moved] =
            ["copying", "copied", "moved"].map(|state| aside(joining.start, state, part));
        let key = format!("{}{part}", joining.start);
        joining.step(&[], "begin", &[]).await?;
        let mut look = redis::cmd("EXISTS");
        look.arg(&copied).arg(&moved);
        let is_copied: u64 = from_value(self.server.command(&look, soon()).await?)?;
        if is_copied == 0 {
            self.copy(&key, joining, &copying).await?;
            joining.step(&[&copying, &copied], "rename", &[]).await?;
        }
        // Also if an earlier call has made the copy: it may have ended before a replica had it.
        self.is_replicated(joining).await?;
        self.drop(&key).await?;
        joining.step(&[&copied, &moved], "rename", &[]).await?;
        Ok(())
    }

    /// Deletes a key on the holder.
    async fn drop(&self, key: &str) -> Result<()> {
        let mut unlink = redis::cmd("UNLINK");
        unlink.arg(key);
        self.held::<u64>(unlink).await.map(drop)
    }

    /// Copies a key from the holder to the name `aside` on the owner: hashes and sorted sets page
    /// by page, other types as a whole.
    async fn copy(&self, key: &str, joining: &LedgerJoin<'_>, aside: &str) -> Result<()> {
        let mut kind = redis::cmd("TYPE");
        kind.arg(key);
        let kind: String = self.held(kind).await?;
        let (scan, put) = match kind.as_str() {
            "hash" => ("HSCAN", "HSET"),
            "zset" => ("ZSCAN", "ZADD"),
            _ => {
                let mut dump = redis::cmd("DUMP");
                dump.arg(key);
                let dump: Vec<u8> = self.held(dump).await?;
                let words = ["RESTORE".into(), "0".into(), dump, "REPLACE".into()];
                joining.step(&[aside], "put", &words).await?;
                return Ok(());
            }
        };
        let mut cursor = "0".to_owned();
        loop {
            let mut page = redis::cmd(scan);
            page.arg(key).arg(&cursor).arg("COUNT").arg(AT_ONCE);
            let (next, mut found): (String, Vec<Vec<u8>>) = self.held(page).await?;
            if put == "ZADD" {
                // `ZSCAN` answers the member first, `ZADD` takes the score first.
                found.chunks_mut(2).for_each(|pair| pair.reverse());
            }
            if !found.is_empty() {
                found.insert(0, put.into());
                joining.step(&[aside], "put", &found).await?;
            }
            if next == "0" {
                return Ok(());
            }
            cursor = next;
        }
    }

    /// Waits until a replica of the owner has the copy, if the owner has a replica: the next step
    /// deletes the original.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if no replica has it within [`REPLICA_MS`].
    async fn is_replicated(&self, joining: &LedgerJoin<'_>) -> Result<()> {
        let mut info = redis::cmd("INFO");
        info.arg("replication");
        let told = self
            .server
            .ask_node(&self.owner.node, &info, soon())
            .await?;
        let told: String = from_value(told)?;
        if told.lines().any(|line| line == "connected_slaves:0") {
            return Ok(());
        }
        // `WAIT` counts the writes of its own connection. The step writes after the copy, and comes
        // by the same connection, because both are one request.
        let mut wait = redis::cmd("WAIT");
        wait.arg(1).arg(REPLICA_MS);
        let mut both = Pipeline::new();
        both.add_command(joining.command(&[], "begin", &[]));
        both.add_command(wait);
        let request = Request::Many(&both);
        let told = self
            .server
            .link
            .try_at_once(&self.owner.node, request, soon());
        let (begun, replicas): (String, u64) = from_value(told.await?.value)?;
        joining.unless_busy(&begun)?;
        match replicas {
            0 => Err(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "no replica of {} received the copied keys within {REPLICA_MS} ms, so the \
                     originals stay: try again",
                    self.owner.node
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Moves a key that is no part of a ledger, with its time to live, unless the owner has another
    /// key of that name. Returns the reason if it stays.
    async fn move_other(&self, key: &[u8]) -> Result<Option<String>> {
        let about = |command: &str| {
            let mut cmd = redis::cmd(command);
            cmd.arg(key);
            cmd
        };
        let Some(dump): Option<Vec<u8>> = self.held(about("DUMP")).await? else {
            // It has expired meanwhile.
            return Ok(None);
        };
        let left: i64 = self.held(about("PTTL")).await?;
        let left = match left {
            // It has expired meanwhile.
            -2 => return Ok(None),
            -1 => 0,
            // Zero would keep it for ever.
            left => left.max(1),
        };
        let mut restore = about("RESTORE");
        restore.arg(left).arg(dump);
        match self.server.command(&restore, soon()).await {
            Ok(_) => {}
            Err(error) if error.to_string().contains("BUSYKEY") => {
                if !self.is_spare(key).await? {
                    let name = String::from_utf8_lossy(key);
                    let why = "the node that serves the slot has another key of this name: delete \
                               one of them";
                    return Ok(Some(format!("{name} on {}: {why}", self.holder.node)));
                }
            }
            Err(error) => return Err(error),
        }
        let _: u64 = self.held(about("UNLINK")).await?;
        Ok(None)
    }

    /// Whether a key that both nodes have may be deleted on the holder. A trigger may be, because
    /// it is a hint. A hash of ours may be, once its fields are added to the hash on the owner;
    /// fields that the owner has stay.
    async fn is_spare(&self, key: &[u8]) -> Result<bool> {
        let mut cmd = redis::cmd("TYPE");
        cmd.arg(key);
        let kind: String = self.held(cmd).await?;
        if kind == "string" {
            let mut get = redis::cmd("GET");
            get.arg(key);
            let value: Vec<u8> = self.held(get).await?;
            return Ok(value == MARKER.as_bytes());
        }
        let start = format!("{}:", self.server.names.namespace());
        if kind != "hash" || !key.starts_with(start.as_bytes()) {
            return Ok(false);
        }
        let mut all = redis::cmd("HGETALL");
        all.arg(key);
        let fields: Vec<(Vec<u8>, Vec<u8>)> = self.held(all).await?;
        for (field, value) in fields {
            let mut add = redis::cmd("HSETNX");
            add.arg(key).arg(field).arg(value);
            let _: Value = self.server.command(&add, soon()).await?;
        }
        Ok(true)
    }
}
