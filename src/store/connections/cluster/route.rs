//! Computes the slot of a key, and of the key in a command.

use redis::{Arg, Cmd};

use crate::shards;

pub(in crate::store) use crate::shards::SLOTS;

/// The slot of a key: the hash of the text between the first braces, or of the whole key.
pub(in crate::store) fn slot_of(key: &[u8]) -> u16 {
    let tag = || {
        let open = key.iter().position(|byte| *byte == b'{')? + 1;
        let length = key[open..].iter().position(|byte| *byte == b'}')?;
        (length > 0).then(|| &key[open..open + length])
    };
    shards::slot_of(tag().unwrap_or(key))
}

/// The slot of the first key in a command that this crate sends; nothing if it has no key. A
/// command that is not listed here has its key as the first argument.
pub(super) fn slot_of_command(cmd: &Cmd) -> Option<u16> {
    let mut words = cmd.args_iter().map(|word| match word {
        Arg::Simple(word) => word,
        _ => b"",
    });
    let key = match words.next()? {
        b"EVAL" | b"EVALSHA" => match words.nth(1)? {
            b"0" => return None,
            _ => words.next()?,
        },
        b"XGROUP" | b"XINFO" => words.nth(1)?,
        b"XREAD" => words.find(|word| *word == b"STREAMS").and(words.next())?,
        b"CLUSTER" | b"CONFIG" | b"DBSIZE" | b"FUNCTION" | b"INFO" | b"PUBLISH" | b"SCAN"
        | b"SCRIPT" | b"TIME" => return None,
        _ => words.next()?,
    };
    Some(slot_of(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_agree_with_the_servers() {
        // By `CLUSTER KEYSLOT`.
        for (key, slot) in [
            ("123456789", 12739),
            ("foo", 12182),
            (
                "keyfall:{app:module:biz/0}:due",
                slot_of(b"app:module:biz/0"),
            ),
            ("{}foo", slot_of(b"{}foo")),
            ("foo{}{bar}", 8363),
            ("foo{{bar}}zap", 4015),
        ] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
    }

    #[test]
    fn commands_go_to_the_node_of_their_first_key() {
        let slot = |words: &[&str]| slot_of_command(redis::cmd(words[0]).arg(&words[1..]));
        let foo = Some(12182);
        assert_eq!(slot(&["HGET", "foo", "field"]), foo);
        assert_eq!(slot(&["EVALSHA", "hash", "2", "foo", "bar"]), foo);
        assert_eq!(slot(&["EVAL", "source", "2", "foo", "bar"]), foo);
        assert_eq!(slot(&["XREAD", "COUNT", "1", "STREAMS", "foo", "0"]), foo);
        assert_eq!(slot(&["XGROUP", "CREATE", "foo", "g", "0"]), foo);
        assert_eq!(slot(&["XINFO", "GROUPS", "foo"]), foo);
        assert_eq!(slot(&["EVALSHA", "hash", "0"]), None);
        assert_eq!(slot(&["PUBLISH", "foo", "word"]), None);
        assert_eq!(slot(&["TIME"]), None);
    }
}
