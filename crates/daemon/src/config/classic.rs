//! The classic interface: its values, and the rules that join several of them.

use keyfall::Kind;

use super::fault::{Origin, Wrong};
use super::settings::Settings;
use super::sources::Sources;
use super::value::{Form, Value, cut};
use crate::classic::{Existing, Networks, Terms, pattern};

/// `app:module`, below which the topics are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicPrefix(pub String);

impl Value for TopicPrefix {
    const FORM: Form = Form::Text;
    const WHAT: &'static str = "APP:MODULE";

    fn parse(text: &str) -> Result<Self, Wrong> {
        match Kind::parse(&format!("{text}:topic")) {
            Ok(_) => Ok(TopicPrefix(text.to_owned())),
            Err(_) => Err(Wrong::new(
                format_args!("{} is not the beginning of job keys", cut(text)),
                "write two segments of ASCII letters, digits, `_`, `-` and `.`, such as app1:queue",
            )),
        }
    }
}

impl Value for Existing {
    const FORM: Form = Form::Text;
    const WHAT: &'static str = "WHAT";

    fn parse(text: &str) -> Result<Self, Wrong> {
        match text {
            "replace" => Ok(Existing::Replace),
            "refuse" => Ok(Existing::Refuse),
            _ => Err(Wrong::new(
                format_args!("{} is not known", cut(text)),
                "write replace or refuse",
            )),
        }
    }
}

impl Value for Networks {
    const FORM: Form = Form::Text;
    const WHAT: &'static str = "NETWORKS";

    fn parse(text: &str) -> Result<Self, Wrong> {
        match Networks::from_list(text) {
            Ok(networks) if networks.is_empty() => Err(Wrong::new(
                "it names no network",
                "write one, such as 10.0.0.0/8, or leave the setting out",
            )),
            Ok(networks) => Ok(networks),
            Err(one) => Err(Wrong::new(
                format_args!("{} is not a network", cut(one)),
                "write an address and the length of its prefix, such as 10.0.0.0/8",
            )),
        }
    }
}

/// The settings of the interface, if it is to be served.
pub(super) fn terms(settings: &Settings, sources: &mut Sources<'_>) -> Option<Terms> {
    let classic = &settings.classic;
    let listen = classic.listen?;
    if classic.allow.is_none() && !listen.ip().to_canonical().is_loopback() {
        let wrong = Wrong::new(
            format_args!("{listen} can be reached from elsewhere, and its clients know no tokens"),
            "name the networks that may use it by `classic.allow`, or listen on 127.0.0.1 or [::1]",
        );
        sources.fault("classic", "listen", wrong);
    }
    let Some(TopicPrefix(prefix)) = classic.prefix.clone() else {
        let wrong = Wrong::new(
            "its job keys have no prefix",
            "write `prefix = \"app1:queue\"` below [classic], with an app and a module of yours",
        );
        sources.fault("classic", "listen", wrong);
        return None;
    };
    Some(Terms {
        prefix,
        ttr: classic.ttr,
        existing: classic.existing,
        deliveries: classic.deliveries,
        allow: classic.allow.clone().unwrap_or_default(),
    })
}

/// The route of the interface, and the place of the setting that asks for it.
pub(super) fn route(terms: Option<&Terms>, sources: &Sources<'_>) -> Option<(String, Origin)> {
    let terms = terms?;
    Some((pattern(&terms.prefix), sources.origin("classic", "prefix")))
}
