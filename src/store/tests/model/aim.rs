//! Makes calls find jobs. Random names are drawn before the states of their jobs are known. So most
//! calls get another name here: of a job in the state that they need. If there is none, the call is
//! replaced by one that brings a job into that state. Calls with a wrong token or number stay, and
//! so do calls that take any name, so that every call meets every state.

use super::ledger::Ledger;
use super::operations::{
    HOUR, Holder, IDS, Id, Limits, Next, Operation, Placement, Step, Verb, When, Which,
};

impl Step {
    pub(super) fn aimed(&self, model: &Ledger) -> Step {
        match self {
            Step::Call(client, operation) => Step::Call(*client, operation.aimed(model)),
            Step::Lost(client, operation) => Step::Lost(*client, operation.aimed(model)),
            other => other.clone(),
        }
    }
}

impl Operation {
    fn aimed(&self, model: &Ledger) -> Operation {
        let leased = model.running();
        let leased: Vec<Id> = leased.into_iter().map(|(_, id)| id).collect();
        let mut dead = IDS.to_vec();
        dead.retain(|id| !model.letters_of(id).is_empty());
        let mut aimed = self.clone();
        match &mut aimed {
            Operation::Claim { ids, fill, .. } => {
                let due = model.waiting().iter().any(|(due, _)| *due <= model.ms());
                if ids.is_empty() && *fill > 0 && !due {
                    return due_now(*fill);
                }
            }
            Operation::Reclaim { ids, .. } => ids.iter_mut().for_each(|id| turn(id, &leased)),
            Operation::Renew { leases, .. } => {
                let own = leases.iter_mut().filter(|it| it.1 == Holder::Owner);
                own.for_each(|it| turn(&mut it.0, &leased));
            }
            Operation::Settle { ends, .. } => {
                if leased.is_empty() && ends.iter().all(|it| it.1 == Holder::Owner) {
                    return claim(ends.len()).aimed(model);
                }
                let own = ends.iter_mut().filter(|it| it.1 == Holder::Owner);
                own.for_each(|it| turn(&mut it.0, &leased));
            }
            Operation::Requeue(items) => {
                if dead.is_empty() && items.iter().all(|it| it.1 != Which::Missing) {
                    return bury(items.iter().map(|it| it.0)).aimed(model);
                }
                let mut free = dead;
                free.retain(|id| !model.jobs.contains_key(id));
                let known = items.iter_mut().filter(|it| it.1 != Which::Missing);
                known.for_each(|it| turn(&mut it.0, &free));
            }
            Operation::Discard(items) => {
                let known = items.iter_mut().filter(|it| it.1 != Which::Missing);
                known.for_each(|it| turn(&mut it.0, &dead));
            }
            Operation::Letters(id, ..) => turn(id, &dead),
            _ => {}
        }
        aimed
    }
}

fn due_now(jobs: usize) -> Operation {
    let place = |id: &Id| Placement {
        id,
        mode: "set",
        when: When::After(0),
        header: r#"{"v":1}"#,
        payload: b"7",
    };
    Operation::Schedule(IDS[..jobs].iter().map(place).collect())
}

fn claim(fill: usize) -> Operation {
    Operation::Claim {
        ids: Vec::new(),
        fill,
        lease: HOUR,
    }
}

fn bury(ids: impl Iterator<Item = Id>) -> Operation {
    let limits = Limits {
        count: 1000,
        age: HOUR,
    };
    let ends = ids.map(|id| (id, Holder::Owner, Verb::Bury(""), Next::Nothing));
    Operation::Settle {
        ends: ends.collect(),
        limits,
    }
}

fn turn(id: &mut Id, targets: &[Id]) {
    let at = IDS.iter().position(|other| other == id).unwrap_or_default();
    if !targets.is_empty() && !targets.contains(id) {
        *id = targets[at % targets.len()];
    }
}
