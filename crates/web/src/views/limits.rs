//! Limits of kinds and prefixes: which there are and what waits for them, and setting and removing
//! them.

use askama::Template;
use axum::response::Response;
use keyfall_daemon::shapes::{LimitIn, LimitOut, LimitsOut, UnlimitedOut};
use serde::Deserialize;

use crate::api::Call;
use crate::cx::{Cx, redirect};
use crate::fault::Fault;
use crate::links::{self, link};
use crate::page::Page;
use crate::read::{Form, Query};

#[derive(Template)]
#[template(path = "limits.html")]
struct Limits {
    page: Page,
    limits: LimitsOut,
    done: Option<Change>,
    /// The values that the form begins with.
    form: Fields,
    /// A kind whose limit is to be removed, which waits for a confirmation.
    removing: Option<String>,
}

/// A change of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Change {
    Limit,
    Unlimit,
}

#[derive(Deserialize)]
pub(crate) struct Asked {
    /// A kind whose limit is to be changed.
    #[serde(default)]
    change: String,
    /// A kind whose limit is to be removed.
    remove: Option<String>,
    done: Option<Change>,
}

/// The fields of the form.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Fields {
    kind: String,
    rate: String,
    burst: String,
    concurrency: String,
    per: String,
    total_rate: String,
    total_burst: String,
    total_concurrency: String,
    /// One in each line, `acme=3`.
    weights: String,
}

#[derive(Deserialize)]
pub(crate) struct Sent {
    #[serde(rename = "do")]
    change: Change,
    #[serde(flatten)]
    fields: Fields,
}

pub(crate) async fn show(cx: Cx, Query(asked): Query<Asked>) -> Result<Response, Fault> {
    let cx = cx.at("limits");
    let limits = cx.caller.ask::<LimitsOut>(Call::get(&["limits"])).await?;
    let form = Fields::of(&asked.change, &limits.limits);
    Ok(cx.show(&Limits {
        page: cx.page.clone(),
        limits,
        done: asked.done,
        form,
        removing: asked.remove,
    }))
}

pub(crate) async fn change(cx: Cx, Form(sent): Form<Sent>) -> Result<Response, Fault> {
    let kind = sent.fields.kind.trim();
    let path = ["kinds", kind, "limit"];
    match sent.change {
        Change::Limit => {
            let call = Call::put(&path).with(&sent.fields.limit()?);
            cx.caller.ask::<LimitOut>(call).await?;
        }
        Change::Unlimit => {
            cx.caller.ask::<UnlimitedOut>(Call::delete(&path)).await?;
        }
    }
    Ok(redirect(&link("limits", &[("done", sent.change.word())])))
}

impl Change {
    fn word(self) -> &'static str {
        match self {
            Change::Limit => "limit",
            Change::Unlimit => "unlimit",
        }
    }
}

impl Fields {
    /// The limit of this kind as it is, or an empty form for it.
    fn of(kind: &str, limits: &[LimitOut]) -> Self {
        let limit = limits.iter().find(|one| one.kind == kind);
        let limit = limit.map(|one| one.limit.clone()).unwrap_or_default();
        let number = |number: Option<u32>| number.map(|it| it.to_string()).unwrap_or_default();
        let weights = limit.weights.iter();
        let weights: Vec<String> = weights
            .map(|(group, weight)| format!("{group}={weight}"))
            .collect();
        Fields {
            kind: kind.to_owned(),
            rate: limit.rate.unwrap_or_default(),
            burst: number(limit.burst.filter(|burst| *burst > 1)),
            concurrency: number(limit.concurrency),
            per: limit.per.unwrap_or_default(),
            total_rate: limit.total_rate.unwrap_or_default(),
            total_burst: number(limit.total_burst.filter(|burst| *burst > 1)),
            total_concurrency: number(limit.total_concurrency),
            weights: weights.join("\n"),
        }
    }

    /// Whether the form shows the fields of groups.
    fn has_groups(&self) -> bool {
        !self.per.is_empty()
    }

    /// The limit that they say; an empty field is none.
    ///
    /// # Errors
    /// If a number is none.
    fn limit(&self) -> Result<LimitIn, Fault> {
        let number = |field: &str, text: &str| match text.trim() {
            "" => Ok(None),
            text => text
                .parse()
                .map(Some)
                .map_err(|_| Fault::invalid(field, "fault.no_number", &[&format!("{text:?}")])),
        };
        let text = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        let lines = self.weights.lines().filter(|line| !line.trim().is_empty());
        let weights =
            LimitIn::weights(lines).map_err(|_| Fault::invalid("weights", "fault.weights", &[]))?;
        Ok(LimitIn {
            rate: text(&self.rate),
            burst: number("burst", &self.burst)?,
            concurrency: number("concurrency", &self.concurrency)?,
            per: text(&self.per),
            total_rate: text(&self.total_rate),
            total_burst: number("total_burst", &self.total_burst)?,
            total_concurrency: number("total_concurrency", &self.total_concurrency)?,
            weights,
        })
    }
}

impl Limits {
    /// Whether the reader may limit anything at all.
    fn may(&self) -> bool {
        self.page.may_somewhere("operate")
    }

    fn jobs(&self, number: &u32) -> String {
        self.page.number(&u64::from(*number))
    }

    /// The limit of the kind itself, beside that of its groups.
    fn of_kind<'a>(&self, limit: &'a LimitIn) -> OfKind<'a> {
        match limit.per {
            Some(_) => OfKind {
                rate: &limit.total_rate,
                burst: &limit.total_burst,
                concurrency: &limit.total_concurrency,
            },
            None => OfKind {
                rate: &limit.rate,
                burst: &limit.burst,
                concurrency: &limit.concurrency,
            },
        }
    }

    /// The jobs of a kind, or of all kinds with a prefix.
    fn jobs_of(&self, kind: &str) -> String {
        links::jobs(&prefix(kind))
    }

    /// The jobs that wait for a limit.
    fn held(&self, kind: &str) -> String {
        links::jobs(&format!("{} state:held", prefix(kind)))
    }

    /// Whether the reader may change the limit of a kind or a prefix.
    fn may_change(&self, kind: &str) -> bool {
        self.page.may("operate", &prefix(kind))
    }
}

/// The limit of a kind without its groups.
struct OfKind<'a> {
    rate: &'a Option<String>,
    burst: &'a Option<u32>,
    concurrency: &'a Option<u32>,
}

/// The prefix of the jobs of a kind, or of all kinds with a prefix.
fn prefix(kind: &str) -> String {
    match kind.ends_with(':') {
        true => kind.to_owned(),
        false => format!("{kind}:"),
    }
}
