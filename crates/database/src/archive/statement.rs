//! The statement that finds the jobs of a window.

use std::time::SystemTime;

use tokio_postgres::types::{ToSql, Type};

use super::job::COLUMNS;
use super::query::{ArchiveQuery, Cursor, Prefix};
use crate::error::Result;

/// The order of the archive. A job has one place in it.
const ORDER: &str = "ORDER BY ended_at DESC, key DESC, accepted_at DESC";

/// A statement and its values, of which its plan is made: with a plan for any values, PostgreSQL
/// could not leave out months, nor use an index for a prefix.
#[derive(Default)]
pub(super) struct Statement {
    pub(super) sql: String,
    values: Vec<(Box<dyn ToSql + Sync + Send>, Type)>,
}

impl Statement {
    /// At most so many of the jobs that ended from `from` until before `until`.
    pub(super) fn of(
        query: &ArchiveQuery,
        cursor: Option<&Cursor>,
        from: Option<SystemTime>,
        until: Option<SystemTime>,
        most: usize,
    ) -> Result<Self> {
        let mut it = Statement::default();
        let mut all = vec!["true".to_owned()];
        let (mut first, mut last) = ("'-infinity'".to_owned(), "'infinity'".to_owned());
        if let Some(from) = from {
            first = it.value(from, Type::TIMESTAMPTZ);
            all.push(format!("ended_at >= {first}"));
        }
        if let Some(until) = until {
            last = it.value(until, Type::TIMESTAMPTZ);
            all.push(format!("ended_at < {last}"));
        }
        if let Some(cursor) = cursor {
            let ended = it.value(cursor.ended, Type::TIMESTAMPTZ);
            let accepted = it.value(cursor.accepted, Type::TIMESTAMPTZ);
            let key = it.value(cursor.key.clone(), Type::TEXT);
            // An index begins at the first, and the second goes on within one instant.
            all.push(format!("ended_at <= {ended}"));
            all.push(format!(
                "(ended_at, key, accepted_at) < ({ended}, {key}, {accepted})"
            ));
            last = ended;
        }
        if let Some(words) = &query.words {
            let words = it.value(words.clone(), Type::TEXT);
            all.push("error IS NOT NULL".to_owned());
            all.push(format!(
                "to_tsvector('simple', error) @@ plainto_tsquery('simple', {words})"
            ));
        }
        if let Some(before) = query.last_before {
            let before = it.value(before, Type::TIMESTAMPTZ);
            all.push(format!(
                "NOT EXISTS (SELECT FROM keyfall_archive later
                    WHERE later.key = keyfall_archive.key AND later.ended_at < {before}
                        AND later.ended_at >= keyfall_archive.ended_at
                        AND (later.ended_at, later.accepted_at)
                            > (keyfall_archive.ended_at, keyfall_archive.accepted_at))"
            ));
        }
        if let Some(key) = &query.key {
            let key = it.value(key.as_str().to_owned(), Type::TEXT);
            all.push(format!("key = {key}"));
        }
        let mut pairs = Vec::new();
        match query.prefix.as_deref().map(Prefix::parse).transpose()? {
            Some(Prefix::Kinds(beginning)) => {
                let like = it.value(like(beginning), Type::TEXT);
                pairs.push(format!("kind LIKE {like}"));
            }
            Some(Prefix::Kind(kind)) => {
                let kind = it.value(kind.to_owned(), Type::TEXT);
                pairs.push(format!("kind = {kind}"));
            }
            Some(Prefix::Keys(beginning)) => {
                let like = it.value(like(beginning), Type::TEXT);
                all.push(format!("key LIKE {like}"));
            }
            None => {}
        }
        if !query.how.is_empty() {
            let how: Vec<&str> = query.how.iter().map(|how| how.as_str()).collect();
            let how = it.value(how, Type::TEXT_ARRAY);
            pairs.push(format!("how = ANY ({how})"));
        }
        let by_kind = !pairs.is_empty()
            && query.words.is_none()
            && query.key.is_none()
            && !all.iter().any(|it| it.starts_with("key LIKE"));
        let payload = match query.with_payloads {
            true => "payload",
            false => "NULL::bytea AS payload",
        };
        let columns = format!("{COLUMNS}, {payload}");
        it.sql = match by_kind {
            // From each kind and end the last ones. Rows are compared, and ordered by kind and end as
            // well, so that no other index than that of both can serve.
            true => format!(
                "SELECT found.* FROM (
                    SELECT kind AS its_kind, how AS its_how FROM keyfall_archive_kinds WHERE {pairs}
                ) pairs CROSS JOIN LATERAL (
                    SELECT {columns} FROM keyfall_archive
                    WHERE (kind, how, ended_at) >= (its_kind, its_how, {first}::timestamptz)
                        AND (kind, how, ended_at) <= (its_kind, its_how, {last}::timestamptz)
                        AND {all}
                    ORDER BY kind DESC, how DESC, ended_at DESC, key DESC, accepted_at DESC
                    LIMIT {most}
                ) found {ORDER} LIMIT {most}",
                pairs = pairs.join(" AND "),
                all = all.join(" AND "),
            ),
            false => {
                all.append(&mut pairs);
                let all = all.join(" AND ");
                format!("SELECT {columns} FROM keyfall_archive WHERE {all} {ORDER} LIMIT {most}")
            }
        };
        Ok(it)
    }

    /// Adds a value, and returns its place in the statement.
    fn value(&mut self, value: impl ToSql + Sync + Send + 'static, kind: Type) -> String {
        self.values.push((Box::new(value), kind));
        format!("${}", self.values.len())
    }

    pub(super) fn values(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        let values = self.values.iter();
        values
            .map(|(value, kind)| (&**value as &(dyn ToSql + Sync), kind.clone()))
            .collect()
    }
}

/// A pattern for texts that begin like this.
fn like(beginning: &str) -> String {
    let mut pattern = String::with_capacity(beginning.len() + 1);
    for c in beginning.chars() {
        if matches!(c, '%' | '_' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern + "%"
}
