//! The description of one setting, and the macro that makes structs of a list of settings.

use super::value::Form;

/// One setting, as file, environment, command line and help know it.
#[derive(Debug)]
pub(super) struct Setting {
    pub(super) section: &'static str,
    pub(super) name: &'static str,
    pub(super) form: Form,
    /// The name of its value in the help.
    pub(super) what: &'static str,
    pub(super) default: Option<&'static str>,
    /// An example of a value, if there is no default.
    pub(super) like: Option<&'static str>,
    pub(super) doc: &'static [&'static str],
}

/// The settings of one section, and its description.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) name: &'static str,
    pub(super) doc: &'static [&'static str],
    pub(super) settings: &'static [Setting],
}

impl Setting {
    /// `redis.url_file`
    pub(super) fn field(&self) -> String {
        format!("{}.{}", self.section, self.name)
    }

    /// `redis-url-file`
    pub(super) fn flag(&self) -> String {
        format!("{}-{}", self.section, self.name).replace('_', "-")
    }

    /// `KEYFALL_REDIS_URL_FILE`
    pub(super) fn env(&self) -> String {
        format!("KEYFALL_{}_{}", self.section, self.name).to_uppercase()
    }
}

/// The first text, if there is one.
pub(super) const fn first(texts: &[&'static str]) -> Option<&'static str> {
    match texts {
        [] => None,
        [text, ..] => Some(text),
    }
}

/// Makes a struct of each section, [`Settings`](super::settings::Settings) of them all, and the
/// list of the descriptions of all settings.
///
/// A setting is a field whose type is a [`Value`](super::value::Value), followed by `= "its
/// default"` or, without a default, by `, like "an example"`; and, if its value must keep a rule,
/// by `where` and the rule.
macro_rules! settings {
    ($(
        $(#[doc = $about:literal])+
        $section:ident: $Section:ident {
            $(
                $(#[doc = $doc:literal])+
                $name:ident: $type:ty $(= $default:literal)? $(, like $like:literal)?
                    $(where $rule:expr)?;
            )+
        }
    )+) => {
        $(
            $(#[doc = $about])+
            #[derive(Debug, Clone, PartialEq)]
            pub struct $Section {
                $( $(#[doc = $doc])+ pub $name: $type, )+
            }
        )+

        /// All settings but the routes.
        #[derive(Debug, Clone)]
        pub(crate) struct Settings {
            $( $(#[doc = $about])+ pub $section: $Section, )+
        }

        /// The descriptions of all settings, in the order in which they are shown.
        pub(super) static SECTIONS: &[Section] = &[$(
            Section {
                name: stringify!($section),
                doc: &[$($about),+],
                settings: &[$(
                    Setting {
                        section: stringify!($section),
                        name: stringify!($name),
                        form: <$type as Value>::FORM,
                        what: <$type as Value>::WHAT,
                        default: first(&[$($default)?]),
                        like: first(&[$($like)?]),
                        doc: &[$($doc),+],
                    },
                )+],
            },
        )+];

        impl Settings {
            /// Reads the values from the sources; a wrong value is replaced by the default, and
            /// reported.
            pub(super) fn read(sources: &mut Sources<'_>) -> Self {
                Settings {
                    $( $section: $Section::read(sources), )+
                }
            }
        }

        $(
            impl $Section {
                /// The same for one section.
                pub(super) fn read(sources: &mut Sources<'_>) -> Self {
                    $Section {
                        $( $name: sources.value::<$type>(
                            stringify!($section),
                            stringify!($name),
                            &[$($rule)?],
                        ), )+
                    }
                }
            }
        )+
    };
}

pub(super) use settings;
