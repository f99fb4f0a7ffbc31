//! Environment variables whose names are one slip away from the name of a setting.
//!
//! An unknown variable is no fault: an orchestrator sets `KEYFALL_PORT` for a service of that name.
//! But a slip such as `KEYFALL_REDIS_ULR` leaves a setting at its default, and nobody notices.

use super::settings::all;

/// A warning for each variable of this process whose name has a slip.
pub fn misspelt_variables() -> Vec<String> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    warnings(names)
}

fn warnings(names: impl Iterator<Item = String>) -> Vec<String> {
    let known: Vec<String> = all().map(|setting| setting.env()).collect();
    let ours = names.filter(|name| name.starts_with("KEYFALL_") && !known.contains(name));
    ours.filter_map(|name| {
        // A letter too many, too few, wrong, or swapped with the next.
        let meant = known
            .iter()
            .find(|known| strsim::damerau_levenshtein(&name, known) == 1)?;
        Some(format!(
            "the environment variable {name} is no setting and has no effect: did you mean {meant}?"
        ))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_named_with_the_setting_and_other_names_are_left_alone() {
        let of = |name: &str| warnings(std::iter::once(name.to_owned()));
        for name in [
            "KEYFALL_REDIS_ULR",
            "KEYFALL_REDIS_URLS",
            "KEYFALL_REDS_URL",
        ] {
            let found = of(name);
            assert_eq!(found.len(), 1, "{name}");
            assert!(found[0].contains(name) && found[0].ends_with("KEYFALL_REDIS_URL?"));
        }
        for name in [
            "KEYFALL_REDIS_URL",
            "KEYFALL_PORT",
            "KEYFALL_SERVICE_HOST",
            "KEYFALL_TOKEN",
            "REDIS_ULR",
        ] {
            assert_eq!(of(name), Vec::<String>::new(), "{name}");
        }
    }
}
