//! A page of kinds: the kinds with a prefix, page by page, and kinds that are named beside it.

use keyfall::{Client, Kind};

use super::body::Pairs;
use super::problem::Problem;

/// The most kinds of a page, and the most kinds that can be named beside it.
const PAGE: usize = 256;

/// The wanted kinds.
pub(super) struct KindPage {
    pub(super) prefix: String,
    kinds: Vec<Kind>,
    limit: usize,
    behind: Option<Kind>,
}

/// The kinds of a page.
pub(super) struct PickedKinds {
    /// The kinds of the page, in order, and the named kinds.
    pub(super) kinds: Vec<Kind>,
    /// The number of kinds with the prefix.
    pub(super) total: u64,
    /// The cursor of the next page.
    pub(super) next: Option<String>,
}

impl KindPage {
    /// Reads the parameters `prefix`, `kind`, `limit` and `cursor`; `other` takes in each other
    /// parameter, and returns whether it knows it. `known` lists all parameters of the call.
    pub(super) fn of(
        Pairs(pairs): Pairs,
        known: &str,
        mut other: impl FnMut(&str, &str) -> Result<bool, Problem>,
    ) -> Result<Self, Problem> {
        let mut page = KindPage {
            prefix: String::new(),
            kinds: Vec::new(),
            limit: PAGE,
            behind: None,
        };
        for (name, value) in pairs {
            match &*name {
                "prefix" => page.prefix = value,
                "kind" => page.kinds.push(kind("kind", &value)?),
                // A script begins with an empty cursor.
                "cursor" if value.is_empty() => page.behind = None,
                "cursor" => page.behind = Some(kind("cursor", &value)?),
                "limit" => page.limit = limit(&value)?,
                _ if other(&name, &value)? => {}
                _ => return Err(Problem::unknown_parameter(&name, known)),
            }
        }
        if page.kinds.len() > PAGE {
            let rule = format!(
                "{} kinds are named, and {PAGE} are allowed: name fewer, or read page by page",
                page.kinds.len()
            );
            return Err(Problem::invalid("kind", rule));
        }
        Ok(page)
    }

    /// Checks that a key can begin with the prefix. Makes no call.
    pub(super) fn check(&self, client: &Client) -> Result<(), Problem> {
        if self.prefix.is_empty() {
            return Ok(());
        }
        let checked = client.tail().prefix(&self.prefix);
        checked.map(drop).map_err(Problem::of_prefix)
    }

    /// All kinds with the prefix.
    pub(super) fn all_of(&self, mut all: Vec<Kind>) -> Vec<Kind> {
        all.retain(|kind| format!("{kind}:").starts_with(&self.prefix));
        all
    }

    /// Picks the kinds of the page from all kinds, which are in order.
    pub(super) fn pick(&self, all: Vec<Kind>) -> PickedKinds {
        self.pick_within(all, usize::MAX, |_| 0)
    }

    /// The same, and no more kinds than together weigh this much; at least one.
    pub(super) fn pick_within(
        &self,
        all: Vec<Kind>,
        most: usize,
        weight: impl Fn(&Kind) -> usize,
    ) -> PickedKinds {
        let all = self.all_of(all);
        let behind = self.behind.as_ref();
        let begin = behind.map_or(0, |last| all.partition_point(|kind| kind <= last));
        let longest = all.len().min(begin + self.limit);
        let mut sum = 0;
        let fits = |kind: &&Kind| {
            sum += weight(kind);
            sum <= most
        };
        let fitting = all[begin..longest].iter().take_while(fits).count();
        let end = longest.min(begin + fitting.max(1));
        let mut kinds: Vec<Kind> = all[begin..end].to_vec();
        let next = kinds.last().filter(|_| end < all.len());
        let next = next.map(Kind::to_string);
        for kind in &self.kinds {
            if all.binary_search(kind).is_ok() && !kinds.contains(kind) {
                kinds.push(kind.clone());
            }
        }
        PickedKinds {
            kinds,
            total: all.len() as u64,
            next,
        }
    }
}

fn kind(field: &str, text: &str) -> Result<Kind, Problem> {
    Kind::parse(text).map_err(|error| Problem::from(error).field(field))
}

fn limit(text: &str) -> Result<usize, Problem> {
    let limit = text.parse().ok();
    let limit = limit.filter(|limit| (1..=PAGE).contains(limit));
    limit.ok_or_else(|| {
        let rule = format!(
            "{text:?} is not a number from 1 to {PAGE}: write the number of kinds of a page"
        );
        Problem::invalid("limit", rule)
    })
}
