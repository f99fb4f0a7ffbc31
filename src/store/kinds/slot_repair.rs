//! Bringing keys back to the node that serves their slot.
//!
//! A ledger's keys are copied a few fields at a time, so that no node is held up, and kept aside under
//! names of the same slot; then they are removed where they were, and only then joined with what the
//! ledger has, by `lua/cluster/mend.lua`. So whatever is interrupted can be repeated: a copy is not
//! used before it is complete, and nothing is copied once more that was used.

use std::time::{Duration, Instant};

use redis::{Cmd, Pipeline, Value};

use crate::error::{Error, ErrorKind, Result};
use crate::names::{LEDGER_PARTS, LedgerNames, MARKER};
use crate::store::connections::link::Request;
use crate::store::kinds::split::aside;
use crate::store::kinds::stray_slots::{Primary, Stray, slot_of_ledger};
use crate::store::ledger::script::{FOUND, TOUCH};
use crate::store::{Server, from_value, unique_id};

const MEND: &str = include_str!("../../../lua/cluster/mend.lua");

/// How many fields or members are copied or joined at once.
const AT_ONCE: usize = 100;

/// How long a replica is waited for, in milliseconds.
const REPLICA_MS: u64 = 1000;

/// How long one step may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is done with parts of a ledger that is whole where it is served: it may be one of before the
/// slot began to move, and those are out of date; or one that began anew without them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spares {
    Leave,
    Join,
    Drop,
}

/// What became of the keys of a slot.
pub(crate) enum SlotOutcome {
    Together,
    /// Some are where they were, or aside, for these reasons.
    Left(Vec<String>),
}

/// A ledger of which a part is missing where it is served.
pub(crate) struct MissingPart {
    pub(crate) ledger: String,
    pub(crate) slot: u16,
    pub(crate) missing: String,
    names: LedgerNames,
}

/// Joining the parts of one ledger.
struct LedgerJoin<'a> {
    server: &'a Server,
    /// What its keys begin with.
    start: &'a str,
    lock: String,
    token: String,
}

/// A slot, and where its keys are.
struct Mending<'a> {
    server: &'a Server,
    slot: u16,
    holder: &'a Primary,
    owner: &'a Primary,
}

impl Server {
    /// Brings the keys of a slot to where it is served.
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
                    left.push(joining.is_left(&format!("what {} has of it", stray.holder)));
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

    /// Joins what an earlier call has left aside, or looks for it. Returns what is left.
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
                    "{found} keys `{start}mending:…` are what a mending that has not ended keeps of \
                     the ledger {}: `keyfall cluster mend --yes` joins them",
                    names.subject
                ));
            }
        }
        Ok(left)
    }

    /// The ledgers of known kinds of which a part is missing.
    pub(crate) async fn torn_ledgers(&self, until: Instant) -> Result<Vec<MissingPart>> {
        let mut torn = Vec::new();
        for names in self.all_ledgers(until).await? {
            // Whose call it is says the empty name of no lane, and so nothing is written.
            let mut touch = TOUCH.call_on_whole(&[&names.calls], &names);
            touch.arg("").arg("");
            match self.evaluate(&TOUCH, &touch, soon()).await {
                Err(fault) if fault.is_torn() => {
                    let missing = fault.missing().unwrap_or_default().to_owned();
                    torn.push(MissingPart::of(names, missing));
                }
                // None of it is there: it is new, or aside as a whole.
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

    /// Goes on without what is missing of a ledger, unless some node has it, aside or not.
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

    /// The ledgers that some of these keys are of.
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

    /// All ledgers of the cluster, of the kinds that are known.
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

    /// What the keys of its ledger begin with, and which part it is.
    fn part_of_ledger<'a>(&self, key: &'a [u8]) -> Option<(&'a str, &'a str)> {
        let key = std::str::from_utf8(key).ok()?;
        self.names.part_of_ledger(key)
    }
}

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

impl MissingPart {
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
    fn new(server: &'a Server, start: &'a str) -> Self {
        LedgerJoin {
            server,
            start,
            lock: format!("{start}mending"),
            token: unique_id(),
        }
    }

    /// A step of `lua/cluster/mend.lua`, on keys behind the lock.
    async fn step(&self, keys: &[&str], step: &str, args: &[Vec<u8>]) -> Result<String> {
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(MEND).arg(1 + keys.len()).arg(&self.lock).arg(keys);
        cmd.arg(&self.token).arg(step).arg(args);
        let told: String = from_value(self.server.command(&cmd, soon()).await?)?;
        if told == "busy" {
            let text = format!(
                "somebody else mends {}, or did until a moment ago: try again in half a minute",
                self.start
            );
            return Err(Error::new(ErrorKind::Unavailable, text));
        }
        Ok(told)
    }

    /// Whether no part is missing where the ledger is served.
    async fn is_whole(&self) -> Result<bool> {
        let mut look = redis::cmd("EXISTS");
        look.arg(&LEDGER_PARTS.map(|part| format!("{}{part}", self.start))[..]);
        let found: usize = from_value(self.server.command(&look, soon()).await?)?;
        Ok(found == LEDGER_PARTS.len())
    }

    fn is_left(&self, what: &str) -> String {
        format!(
            "{what} is left, as `{}*` is whole where it is served: as a rule that has taken over \
             before they left, and they are out of date: drop them; but join them, if clients of \
             a version that did not notice went on without them",
            self.start
        )
    }

    /// Joins what was kept aside with what the ledger has. Returns what could not be. Where that is
    /// torn, it has refused all calls since, and so what comes replaces what it has.
    async fn join(&self, replaces: bool) -> Result<Vec<String>> {
        self.step(&[], "begin", &[]).await?;
        let mut left = Vec::new();
        // It is whole with the last that was missing, so those that are there come first.
        let mut parts = Vec::new();
        for part in LEDGER_PARTS {
            let mut look = redis::cmd("EXISTS");
            look.arg(format!("{}{part}", self.start));
            let is_there: bool = from_value(self.server.command(&look, soon()).await?)?;
            parts.insert(if is_there { 0 } else { parts.len() }, part);
        }
        for part in parts {
            let [copied, moved] = ["copied", "moved"].map(|state| aside(self.start, state, part));
            // What was copied, nobody has any more elsewhere.
            self.step(&[&copied, &moved], "rename", &[]).await?;
            let key = format!("{}{part}", self.start);
            let mode = if replaces { "replace" } else { "join" };
            let words = [part.into(), AT_ONCE.to_string().into(), mode.into()];
            loop {
                let told = self.step(&[&moved, &key], "join", &words).await?;
                match told.strip_prefix("clash ") {
                    Some(name) => {
                        left.push(format!(
                            "{key} and {moved} both have `{name}`, and they differ: delete the one \
                             that is wrong, and call this again"
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
    /// Lets the holder answer for the slot, and the owner for all of it.
    async fn open(&self) -> Result<()> {
        let slot = format!("[{}-", self.slot);
        if self.owner.open.iter().any(|it| it.starts_with(&slot)) {
            self.at(self.owner, "STABLE", None).await?;
        }
        let from = Some(self.owner.id.as_str());
        self.at(self.holder, "IMPORTING", from).await
    }

    /// Tells a node what the slot is to it.
    async fn at(&self, node: &Primary, state: &str, other: Option<&str>) -> Result<()> {
        let mut set = redis::cmd("CLUSTER");
        set.arg("SETSLOT").arg(self.slot).arg(state).arg(other);
        self.server.ask_node(&node.node, &set, soon()).await?;
        Ok(())
    }

    /// What the holder answers.
    async fn held<T: redis::FromRedisValue>(&self, cmd: Cmd) -> Result<T> {
        let mut both = Pipeline::new();
        both.cmd("ASKING").ignore().add_command(cmd);
        let request = Request::Many(&both);
        let link = &self.server.link;
        let answer = link.try_at_once(&self.holder.node, request, soon());
        let (told,): (T,) = from_value(answer.await?.value)?;
        Ok(told)
    }

    /// Moves a part of a ledger, and keeps it aside.
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
            self.is_replicated().await?;
        }
        self.drop(&key).await?;
        joining.step(&[&copied, &moved], "rename", &[]).await?;
        Ok(())
    }

    async fn drop(&self, key: &str) -> Result<()> {
        let mut unlink = redis::cmd("UNLINK");
        unlink.arg(key);
        self.held::<u64>(unlink).await.map(drop)
    }

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
                // The member comes with its score, and is stored behind it.
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

    /// Waits until a replica has what was copied, where there is one: it is removed next where it was.
    async fn is_replicated(&self) -> Result<()> {
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
        // It is for the writes of its own connection that this waits, and each of ours writes.
        let mut wait = redis::cmd("WAIT");
        wait.arg(1).arg(REPLICA_MS);
        let told = self
            .server
            .ask_node(&self.owner.node, &wait, soon())
            .await?;
        match from_value::<u64>(told)? {
            0 => Err(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "no replica of {} has what was copied there within {REPLICA_MS} ms, and so it \
                     stays where it was as well: try again",
                    self.owner.node
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Moves a key that is no part of a ledger, unless there is another one of that name. Returns why
    /// not.
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
        let mut restore = about("RESTORE");
        restore.arg(left.max(0)).arg(dump);
        match self.server.command(&restore, soon()).await {
            Ok(_) => {}
            Err(error) if error.to_string().contains("BUSYKEY") => {
                if !self.is_spare(key).await? {
                    let name = String::from_utf8_lossy(key);
                    let why = "its owner has another key of that name: delete one of them";
                    return Ok(Some(format!("{name} on {}: {why}", self.holder.node)));
                }
            }
            Err(error) => return Err(error),
        }
        let _: u64 = self.held(about("UNLINK")).await?;
        Ok(None)
    }

    /// Whether nobody misses a key that is on both sides: a trigger, which is a hint; or a list of
    /// ours of which each entry is on the other side by now, where those that were there stay.
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
