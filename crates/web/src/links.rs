//! Links to the pages of this site, relative to their folder.

/// A page with its parameters; empty ones are left out.
pub(crate) fn link(page: &str, parameters: &[(&str, &str)]) -> String {
    let mut pairs = form_urlencoded::Serializer::new(String::new());
    for (name, value) in parameters.iter().filter(|(_, value)| !value.is_empty()) {
        pairs.append_pair(name, value);
    }
    let pairs = pairs.finish();
    match &*pairs {
        "" => page.to_owned(),
        pairs => format!("{page}?{pairs}"),
    }
}

/// The page of the jobs that a search finds.
pub(crate) fn jobs(search: &str) -> String {
    link("jobs", &[("q", search)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_encoded() {
        assert_eq!(jobs("a:b \"&?#/<"), "jobs?q=a%3Ab+%22%26%3F%23%2F%3C");
        assert_eq!(link("./", &[("prefix", ""), ("cursor", "")]), "./");
        let both = link("jobs", &[("q", "x"), ("cursor", "y=")]);
        assert_eq!(both, "jobs?q=x&cursor=y%3D");
    }
}
