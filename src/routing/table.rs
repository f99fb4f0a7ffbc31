//! The compiled routes of a router: the owner of a key, and the owners of a kind.

use std::cmp::Reverse;

use regex::{RegexSet, RegexSetBuilder};

use super::overlap::may_share_text;
use super::pattern::Pattern;
use super::segment::{Rank, Segment};
use crate::error::{Error, ErrorKind, Result};
use crate::key::JobKey;

/// Finds the route that owns a key. It never changes after it is made.
pub(crate) struct RouteTable {
    /// In order of precedence.
    routes: Vec<RouteSlot>,
    /// The regexes of whole keys, in the same order, so that the first match is the owner.
    set: RegexSet,
}

/// One route of the table.
struct RouteSlot {
    pattern: Pattern,
    priority: i32,
    /// The route's index in the list that the table was made from.
    index: usize,
}

/// The spread of the keys of one kind over the routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coverage {
    /// No key of the kind has a route.
    None,
    /// Every key of the kind belongs to the route with this index.
    Whole(usize),
    /// The id decides. This goes by the ranks of segments: a regex that happens to match every id
    /// is not recognised, and counts as mixed.
    Mixed,
}

impl RouteTable {
    /// Compiles the routes, each a pattern with its priority. Their indices in this list are the
    /// results of [`find`](Self::find).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRoute`] if two of them clash, or if they do not compile together.
    pub(crate) fn new(routes: Vec<(Pattern, i32)>) -> Result<Self> {
        let mut routes: Vec<RouteSlot> = routes
            .into_iter()
            .enumerate()
            .map(|(index, (pattern, priority))| RouteSlot {
                pattern,
                priority,
                index,
            })
            .collect();
        routes.sort_by_key(RouteSlot::precedence);
        for tied in routes.chunk_by(|a, b| a.precedence() == b.precedence()) {
            for (at, later) in tied.iter().enumerate() {
                if let Some(earlier) = tied[..at]
                    .iter()
                    .find(|it| clash(&it.pattern, &later.pattern))
                {
                    return Err(clash_error(&earlier.pattern, &later.pattern));
                }
            }
        }
        // Each regex was bounded when its pattern was parsed; the set grows with the routes.
        let set = RegexSetBuilder::new(routes.iter().map(|route| route.pattern.key_regex()))
            .size_limit(usize::MAX)
            .build()
            .map_err(|fault| {
                let message = format!(
                    "the {} routes do not compile together; register fewer of them",
                    routes.len()
                );
                Error::new(ErrorKind::InvalidRoute, message).because(fault)
            })?;
        Ok(RouteTable { routes, set })
    }

    /// The index of the route that owns the key.
    pub(crate) fn find(&self, key: &JobKey) -> Option<usize> {
        let first = self.set.matches(key.as_str()).iter().next()?;
        Some(self.routes[first].index)
    }

    /// The indices of the routes that can match a key of this kind, in order of precedence.
    pub(crate) fn of_kind(&self, kind: &str) -> Vec<usize> {
        let matching = self
            .routes
            .iter()
            .filter(|it| it.pattern.matches_kind(kind));
        matching.map(|it| it.index).collect()
    }

    /// The spread of the keys of this kind, `app:module:biz`, over the routes.
    pub(crate) fn coverage(&self, kind: &str) -> Coverage {
        let mut of_kind = self
            .routes
            .iter()
            .filter(|it| it.pattern.matches_kind(kind));
        match of_kind.next() {
            None => Coverage::None,
            // The routes behind it get no key of the kind.
            Some(first) if first.pattern.takes_whole_kind() => Coverage::Whole(first.index),
            Some(_) => Coverage::Mixed,
        }
    }
}

impl RouteSlot {
    /// Sorts the routes: the lesser wins. Equal precedence for one key is a clash.
    fn precedence(&self) -> (Reverse<i32>, [Rank; 4]) {
        (Reverse(self.priority), self.pattern.ranks())
    }
}

/// Whether two patterns have the same ranks and can match the same key, so that only their
/// priorities can tell which of them owns it.
///
/// Exact, except for regexes that are too complex to compare: these count as overlapping.
pub(crate) fn clash(a: &Pattern, b: &Pattern) -> bool {
    use Segment::{Literal, Regex};
    if a.ranks() != b.ranks() {
        return false;
    }
    let pairs = || a.segments().iter().zip(b.segments());
    // Two regexes are costly to compare, and literals mostly decide before it comes to that.
    let literals_agree = pairs().all(|pair| !matches!(pair, (Literal(a), Literal(b)) if a != b));
    literals_agree
        && pairs().enumerate().all(|(index, pair)| match pair {
            (Regex { source: a, .. }, Regex { source: b, .. }) => may_share_text(&[a, b], index),
            _ => true,
        })
}

/// The error for two routes that clash, with the remedies.
pub(crate) fn clash_error(a: &Pattern, b: &Pattern) -> Error {
    Error::new(
        ErrorKind::InvalidRoute,
        format!(
            "the routes \"{a}\" and \"{b}\" clash: both have the same rank and can match the same \
             key, so neither has precedence; make one of them more specific, with a literal or a \
             narrower regex, or give one an explicit `.priority(n)`"
        ),
    )
}
