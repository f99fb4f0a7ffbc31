//! A serde deserializer over the named segments of a route, for [`Segments`](super::Segments).
//!
//! A type of one value reads the only segment; sequences and tuples read all segments in the order
//! of the route; structs and maps read them by name. `one` parses each single segment.

mod one;

use serde::de::value::BorrowedStrDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

use self::one::{SegmentError, SegmentValue};
use super::Job;

/// All named segments of a job, in the order of the route.
pub(super) struct NamedSegments<'a>(Vec<SegmentValue<'a>>);

impl<'a> NamedSegments<'a> {
    /// Reads the named segments of this job's key.
    pub(super) fn of(job: &'a Job) -> Self {
        let segments = job.named_segments();
        NamedSegments(
            segments
                .map(|(name, text)| SegmentValue { name, text })
                .collect(),
        )
    }

    /// The only segment, for a type that is one value.
    ///
    /// # Errors
    /// If the route names no segment, or several.
    fn only(&self) -> Result<SegmentValue<'a>, SegmentError> {
        match *self.0 {
            [segment] => Ok(segment),
            _ => Err(SegmentError::custom(format_args!(
                "the handler takes one segment, and its route names {}: \
                 take a tuple or a struct, or name one segment in the route",
                self.list()
            ))),
        }
    }

    /// The number of the segments and their names, for error texts.
    fn list(&self) -> String {
        let names: Vec<_> = self.0.iter().map(|one| format!("`{}`", one.name)).collect();
        match names.len() {
            0 => "none".into(),
            count => format!("{count}, {}", names.join(", ")),
        }
    }
}

/// Methods for types of one value: they read the only segment.
macro_rules! one_value {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SegmentError> {
            let segment = self.only()?;
            segment.$method(visitor).map_err(|error| error.of(segment))
        }
    )*};
}

impl<'de> Deserializer<'de> for NamedSegments<'de> {
    type Error = SegmentError;

    one_value! {
        deserialize_bool deserialize_char deserialize_str deserialize_string
        deserialize_bytes deserialize_byte_buf deserialize_identifier
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
        deserialize_f32 deserialize_f64
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SegmentError> {
        visitor.visit_map(SegmentMap(self.0.into_iter(), None))
    }

    forward_to_deserialize_any! { map }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, SegmentError> {
        self.deserialize_any(visitor)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SegmentError> {
        visitor.visit_seq(Items(self.0.into_iter()))
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, SegmentError> {
        if self.0.len() != length {
            return Err(SegmentError::custom(format_args!(
                "the handler takes {length} segments, but its route names {}: use the same number \
                 in both",
                self.list()
            )));
        }
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, SegmentError> {
        self.deserialize_tuple(length, visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, SegmentError> {
        let segment = self.only()?;
        segment
            .deserialize_enum(name, variants, visitor)
            .map_err(|error| error.of(segment))
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

    fn deserialize_ignored_any<V: Visitor<'de>>(
        self,
        visitor: V,
    ) -> Result<V::Value, SegmentError> {
        visitor.visit_unit()
    }
}

/// Sequence access: the segments in order.
struct Items<'a>(std::vec::IntoIter<SegmentValue<'a>>);

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = SegmentError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, SegmentError> {
        let read = |one: SegmentValue<'de>| seed.deserialize(one).map_err(|error| error.of(one));
        self.0.next().map(read).transpose()
    }
}

/// Map access: the segments still to come, and the segment whose name was read and whose value was
/// not.
struct SegmentMap<'a>(
    std::vec::IntoIter<SegmentValue<'a>>,
    Option<SegmentValue<'a>>,
);

impl<'de> MapAccess<'de> for SegmentMap<'de> {
    type Error = SegmentError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, SegmentError> {
        self.1 = self.0.next();
        let read =
            |one: SegmentValue<'de>| seed.deserialize(BorrowedStrDeserializer::new(one.name));
        self.1.map(read).transpose()
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<T::Value, SegmentError> {
        let one = self
            .1
            .take()
            .ok_or_else(|| SegmentError::custom("a value was read before its name"))?;
        seed.deserialize(one).map_err(|error| error.of(one))
    }
}
