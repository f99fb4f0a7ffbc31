//! The rule of a recurring job, and the form that changes it.

use keyfall_daemon::shapes::{Job, PreviewOut, Time};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::fault::Fault;

/// The rule and the occurrence of a job, as the page shows them.
pub(crate) struct Recurs {
    pub(crate) number: u64,
    pub(crate) scheduled_for: Time,
    pub(crate) skipped: u64,
    pub(crate) paused_since: Option<Time>,
    pub(crate) declared_by: Option<String>,
    pub(crate) preview: PreviewOut,
    pub(crate) written: Written,
}

/// A rule as a person writes it: a text, and a time zone, which may be empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Written {
    pub(crate) rule: String,
    pub(crate) zone: String,
}

/// The body of the calls that take a rule.
#[derive(Serialize)]
pub(crate) struct RuleForm {
    rule: Value,
}

impl Recurs {
    /// `None` if the job does not recur, or a newer version wrote its rule.
    pub(crate) fn of(job: &Job) -> Option<Self> {
        let occurrence = job.occurrence.as_ref()?;
        Some(Recurs {
            number: occurrence.number,
            scheduled_for: occurrence.scheduled_for,
            skipped: occurrence.skipped,
            paused_since: occurrence.paused_since,
            declared_by: occurrence.declared_by.clone(),
            preview: PreviewOut::of_table(&occurrence.rule)?,
            written: Written::of(&occurrence.rule),
        })
    }
}

impl Written {
    /// A cron expression and an interval alone are texts; other rules are written as JSON.
    fn of(table: &Value) -> Self {
        let fields = table.as_object().map_or(0, |fields| fields.len());
        let text = |name: &str| table[name].as_str().unwrap_or_default().to_owned();
        let zone = text("zone");
        let rest = fields - usize::from(!zone.is_empty());
        let rule = match (text("cron"), text("every"), rest) {
            (cron, _, 1) if !cron.is_empty() => cron,
            (_, every, 1) if !every.is_empty() => format!("every {every}"),
            _ => {
                return Written {
                    rule: table.to_string(),
                    zone: String::new(),
                };
            }
        };
        Written { rule, zone }
    }

    /// The body of a call with this rule.
    ///
    /// # Errors
    /// If the rule is empty, or begins like JSON and is none.
    pub(crate) fn form(&self) -> Result<RuleForm, Fault> {
        let (text, zone) = (self.rule.trim(), self.zone.trim());
        if text.is_empty() {
            return Err(Fault::invalid("rule", "fault.no_rule", &[]));
        }
        let mut rule = match text.strip_prefix("every ") {
            _ if text.starts_with('{') => serde_json::from_str(text).map_err(|error| {
                let place = [error.line(), error.column()];
                Fault::invalid("rule", "fault.rule", &[&place[0], &place[1]])
            })?,
            Some(interval) => json!({"every": interval}),
            None => json!({"cron": text}),
        };
        if !zone.is_empty() {
            rule["zone"] = zone.into();
        }
        Ok(RuleForm { rule })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_written_as_it_is_read() {
        for (table, rule, zone) in [
            (json!({"cron": "0 9 * * *"}), "0 9 * * *", ""),
            (
                json!({"cron": "@daily", "zone": "Europe/Berlin"}),
                "@daily",
                "Europe/Berlin",
            ),
            (json!({"every": "90m"}), "every 90m", ""),
            (
                json!({"every": "90m", "jitter": "5s"}),
                r#"{"every":"90m","jitter":"5s"}"#,
                "",
            ),
            (json!({"after_end": "10m"}), r#"{"after_end":"10m"}"#, ""),
        ] {
            let written = Written::of(&table);
            assert_eq!((&*written.rule, &*written.zone), (rule, zone));
            assert_eq!(written.form().unwrap().rule, table);
        }
        for rule in ["", " ", "{\"cron\":"] {
            let written = Written {
                rule: rule.to_owned(),
                ..Written::default()
            };
            assert!(written.form().is_err(), "{rule}");
        }
    }
}
