//! Calls on dead letters.

use super::ledger::{Ledger, Waiting};
use super::operations::{Id, Limits, When};

/// How many more letters a call drops than have just come.
const MORE: usize = 16;

impl Ledger {
    pub(super) fn requeue(&mut self, id: Id, number: u64, when: When, header: &str) -> String {
        if !self.has_letter(id, number) {
            return "absent".to_owned();
        }
        if self.jobs.contains_key(id) {
            return "present".to_owned();
        }
        let mut record = self.unbury(number).record;
        header.clone_into(&mut record.header);
        record.step("requeued", self.ms());
        let due = self.due(when);
        self.count("requeued");
        format!("requeued:{due}{}", self.put(id, Waiting { due, record }))
    }

    pub(super) fn discard(&mut self, id: Id, number: u64) -> String {
        if !self.has_letter(id, number) {
            return "absent".to_owned();
        }
        self.unbury(number);
        self.count("deleted");
        "deleted".to_owned()
    }

    pub(super) fn has_letter(&self, id: Id, number: u64) -> bool {
        self.letters
            .get(&number)
            .is_some_and(|letter| letter.id == id)
    }

    /// The letters in the order of `dead`: by time of death, then by name.
    pub(super) fn by_death(&self) -> Vec<(u64, String, u64)> {
        let letters = self.letters.iter();
        let mut all: Vec<_> = letters
            .map(|(number, letter)| (letter.died, letter.name(*number), *number))
            .collect();
        all.sort_unstable();
        all
    }

    /// Drops letters beyond the limits after `came` new ones. Returns how many it dropped.
    pub(super) fn trim(&mut self, limits: Limits, came: usize) -> usize {
        let at_once = came + MORE;
        let all = self.by_death();
        let old = |(died, ..): &&(u64, _, _)| *died + limits.age <= self.ms();
        let too_old = all.iter().filter(old).count().min(at_once);
        let too_many = (all.len() - too_old)
            .saturating_sub(limits.count)
            .min(at_once);
        let fallen = too_old + too_many;
        for (_, _, number) in all.into_iter().take(fallen) {
            self.unbury(number);
            self.count("trimmed");
        }
        fallen
    }
}
