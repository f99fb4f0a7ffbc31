//! A serde deserializer over one segment: a value parsed from text with its `FromStr`.
//!
//! Lists, tables and structs are refused by the target type, which receives a text.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;

/// The text of one segment, with its name in the route.
#[derive(Clone, Copy)]
pub(super) struct SegmentValue<'a> {
    /// The name of the segment in the pattern of the route.
    pub(super) name: &'a str,
    /// The text of the segment in the key.
    pub(super) text: &'a str,
}

/// The fault of a segment that does not fit its type, with the segment's name if one is at fault.
#[derive(Debug)]
pub(in crate::handler) struct SegmentError {
    name: Option<String>,
    fault: String,
}

impl SegmentError {
    /// Adds the name of this segment, unless the error has one already.
    pub(super) fn of(mut self, segment: SegmentValue<'_>) -> Self {
        self.name.get_or_insert_with(|| segment.name.into());
        self
    }
}

impl fmt::Display for SegmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "segment `{name}`: {}", self.fault),
            None => f.write_str(&self.fault),
        }
    }
}

impl std::error::Error for SegmentError {}

impl serde::de::Error for SegmentError {
    fn custom<T: fmt::Display>(fault: T) -> Self {
        SegmentError {
            name: None,
            fault: fault.to_string(),
        }
    }

    fn missing_field(field: &'static str) -> Self {
        SegmentError::custom(format_args!(
            "the handler takes a segment `{field}`, and its route names none: \
             write `{{{field}}}` in the route"
        ))
    }
}

/// Methods for types that are parsed from text, such as numbers.
macro_rules! parsed {
    ($($method:ident $visit:ident $type:ty,)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SegmentError> {
            let value = self.text.parse::<$type>().map_err(|_| {
                SegmentError::custom(format_args!("`{}` is not a valid {}", self.text, stringify!($type)))
            })?;
            visitor.$visit(value)
        }
    )*};
}

impl<'de> Deserializer<'de> for SegmentValue<'de> {
    type Error = SegmentError;

    parsed! {
        deserialize_bool visit_bool bool,
        deserialize_i8 visit_i8 i8,
        deserialize_i16 visit_i16 i16,
        deserialize_i32 visit_i32 i32,
        deserialize_i64 visit_i64 i64,
        deserialize_i128 visit_i128 i128,
        deserialize_u8 visit_u8 u8,
        deserialize_u16 visit_u16 u16,
        deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64,
        deserialize_u128 visit_u128 u128,
        deserialize_f32 visit_f32 f32,
        deserialize_f64 visit_f64 f64,
    }

    /// Gives the text. Lists and tables are read here too, and refuse the text with an error.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SegmentError> {
        visitor.visit_borrowed_str(self.text)
    }

    forward_to_deserialize_any! {
        char str string identifier ignored_any
        seq tuple tuple_struct map struct
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SegmentError> {
        visitor.visit_borrowed_bytes(self.text.as_bytes())
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SegmentError> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, SegmentError> {
        visitor.visit_enum(StrDeserializer::new(self.text))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, SegmentError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SegmentError> {
        visitor.visit_some(self)
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SegmentError> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, SegmentError> {
        visitor.visit_unit()
    }
}
