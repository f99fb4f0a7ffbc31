//! The rig: a ledger, its model and a few clients that call both, step by step.

use std::fmt::Write as _;

use proptest::test_runner::TestCaseError;

use super::Keys;
use super::answer::{Number, Reply};
use super::call::{Call, render};
use super::compare::{FOREIGN, differences};
use super::copy::Copy;
use super::ledger::{Ledger, Trigger};
use super::operations::{CLIENTS, IDS, MOMENT, Operation, Step};
use super::pages;
use crate::store::ledger::script::AUDIT;
use crate::store::tests::support::{Bench, soon};
use crate::store::{Lane, Razed, Unlisted};
use crate::time::UnixUs;

pub(super) struct Rig<'a> {
    bench: &'a Bench,
    keys: Keys,
    model: Ledger,
    clients: [Client; CLIENTS],
    /// The copy that follows the ledger; then the ledger is compared with it, and not with the model.
    copy: Option<Copy>,
}

struct Client {
    lane: String,
    /// The sent calls in order; the index of a call gives its number.
    sent: Vec<Sent>,
}

struct Sent {
    operation: Operation,
    call: Call,
    /// The model at the time at which the call was sent.
    known: Ledger,
}

impl<'a> Rig<'a> {
    /// Carries out all steps. Fails at the first step after which the ledger deviates from the
    /// model.
    pub(super) async fn run(
        bench: &'a Bench,
        keys: Keys,
        steps: &[Step],
    ) -> Result<(), TestCaseError> {
        let mut rig = Rig::new(bench, keys).await;
        let mut done = String::new();
        for (at, step) in steps.iter().enumerate() {
            let step = step.aimed(&rig.model);
            _ = write!(done, "\n{:>4}  {step:?}", at + 1);
            let wrong = rig.step(&step).await;
            if !wrong.is_empty() {
                let what = format!("After{done}\n{}", wrong.join("\n"));
                return Err(TestCaseError::fail(what));
            }
        }
        Ok(())
    }

    /// An empty ledger.
    async fn new(bench: &'a Bench, keys: Keys) -> Self {
        let n = bench.names();
        let triggers = IDS.map(|id| bench.key(id));
        let mut clear = vec!["DEL"];
        let changes = n.calls.replace(":calls", ":changes");
        clear.extend(n.all());
        clear.push(&changes);
        clear.extend(triggers.iter().map(|key| key.as_str()));
        let _: u64 = bench.ask(&clear).await;
        if keys == Keys::Always {
            let ledger = &bench.ledger;
            let founded = ledger.server.found_one(ledger.kind(), 0, soon());
            founded.await.unwrap();
        }
        // The audit is called in a pipeline, which does not load a missing script.
        let load = AUDIT.load();
        bench.ledger.server.command(&load, soon()).await.unwrap();
        let model = Ledger {
            began: bench.now().await,
            founded: keys == Keys::Always,
            ..Ledger::default()
        };
        let clients = std::array::from_fn(|_| Client {
            lane: Lane::new().id().to_owned(),
            sent: Vec::new(),
        });
        Rig {
            bench,
            keys,
            model,
            clients,
            copy: (keys == Keys::Copied).then(Copy::default),
        }
    }

    /// Carries out a step, and returns the deviations after it.
    async fn step(&mut self, step: &Step) -> Vec<String> {
        let outcome = match step {
            Step::Call(client, operation) => self.call(*client, operation).await,
            Step::Lost(client, operation) => {
                if operation.is_numbered() {
                    self.send(*client, operation);
                }
                Ok(())
            }
            Step::Repeat(client) => self.arrive(*client, 0).await,
            Step::Late(client, calls) => self.arrive(*client, *calls).await,
            Step::Seize(id) => {
                let key = self.bench.key(id);
                let _: String = self.bench.ask(&["SET", key.as_str(), FOREIGN]).await;
                self.model.triggers.insert(id, Trigger::Foreign);
                Ok(())
            }
            Step::Lose(id) => {
                let _: u64 = self.bench.ask(&["DEL", self.bench.key(id).as_str()]).await;
                self.model.triggers.remove(id);
                Ok(())
            }
            Step::Raze => self.raze().await,
            Step::Listed => {
                self.make_known().await;
                Ok(())
            }
        };
        if let Some(copy) = &mut self.copy {
            let wrong = copy.follow(self.bench).await;
            self.tick().await;
            return wrong;
        }
        let mut wrong = Vec::from_iter(outcome.err());
        wrong.extend(differences(self.bench, &self.model).await);
        let words = [&["EXISTS"], &self.bench.names().all()[..]].concat();
        let there: usize = self.bench.ask(&words).await;
        if self.keys == Keys::Always && there != words.len() - 1 {
            wrong.push(format!("only {there} keys are there"));
        }
        self.tick().await;
        wrong
    }

    /// Waits until the next millisecond, so that short leases have lapsed: then a sequence has the
    /// same result each time.
    async fn tick(&self) {
        let now = self.model.ms();
        let leases = self.model.running().into_iter();
        let short = leases.filter(|(deadline, _)| *deadline <= now + 2 * MOMENT);
        let last = short.map(|(deadline, _)| deadline).max();
        while self.bench.now().await <= last.unwrap_or(now) {}
    }

    async fn call(&mut self, client: usize, operation: &Operation) -> Result<(), String> {
        match operation {
            Operation::List(page) => pages::list(self.bench, &mut self.model, page).await,
            Operation::Audit(repair) => pages::audit(self.bench, &self.model, *repair).await,
            operation if operation.is_numbered() => {
                self.send(client, operation);
                self.arrive(client, 0).await
            }
            operation => {
                let call = render(self.bench, &self.model, operation, None);
                let (now, reply) = call.send(self.bench).await?;
                self.model.now = now;
                let reply = match operation {
                    Operation::Stats => reply.in_order(),
                    _ => reply,
                };
                compare(&self.model.plain(operation), &reply)
            }
        }
    }

    async fn raze(&mut self) -> Result<(), String> {
        let ledger = &self.bench.ledger;
        let razed = ledger.raze(soon()).await.unwrap();
        if self.keys == Keys::Always {
            let founded = ledger.server.found_one(ledger.kind(), 0, soon());
            founded.await.unwrap();
        }
        match (razed, self.model.raze()) {
            (Razed::Gone, true) | (Razed::Held(_), false) => Ok(()),
            other => Err(format!("razed, and should be: {other:?}")),
        }
    }

    async fn make_known(&mut self) {
        let Some(since) = self.model.unlisted.take() else {
            return;
        };
        let ledger = &self.bench.ledger;
        let unlisted = Unlisted {
            shard: 0,
            since: UnixUs(since),
        };
        let listed = ledger.store.take_mark_off(ledger.kind(), unlisted, soon());
        listed.await.unwrap();
    }

    /// A client sends a call.
    fn send(&mut self, client: usize, operation: &Operation) {
        let Client { lane, sent } = &mut self.clients[client];
        let number = sent.len() as u64 + 1;
        let number = Number { lane, number };
        sent.push(Sent {
            operation: operation.clone(),
            call: render(self.bench, &self.model, operation, Some(number)),
            known: self.model.clone(),
        });
    }

    /// A sent call arrives: the one before the last `but_for` calls of its client.
    async fn arrive(&mut self, client: usize, but_for: usize) -> Result<(), String> {
        let Client { lane, sent } = &self.clients[client];
        let Some(at) = sent.len().checked_sub(but_for + 1) else {
            return Ok(());
        };
        let Sent {
            operation,
            call,
            known,
        } = &sent[at];
        let number = at as u64 + 1;
        let (now, reply) = call.send(self.bench).await?;
        self.model.now = now;
        let number = Number { lane, number };
        compare(&self.model.numbered(number, operation, known), &reply)
    }
}

fn compare(expected: &Reply, reply: &Reply) -> Result<(), String> {
    if expected == reply {
        return Ok(());
    }
    Err(format!("the answer is {reply}, and should be {expected}"))
}
