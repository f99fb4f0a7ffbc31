//! Commands as Redis reads and logs them: `*2\r\n$3\r\nGET\r\n$1\r\na\r\n`.

/// A command and its arguments.
pub type Command = Vec<Vec<u8>>;

/// Takes the first command, if it is there to its end.
pub fn next(text: &mut &[u8]) -> Option<Command> {
    let mut rest = *text;
    let count = header(&mut rest, b'*')?;
    let arguments = (0..count).map(|_| {
        let length = header(&mut rest, b'$')?;
        let argument = rest.get(..length)?.to_vec();
        rest = rest.get(length + 2..)?;
        Some(argument)
    });
    let command = arguments.collect::<Option<Command>>()?;
    *text = rest;
    Some(command)
}

fn header(rest: &mut &[u8], mark: u8) -> Option<usize> {
    let end = rest.windows(2).position(|two| two == b"\r\n")?;
    let number = std::str::from_utf8(rest[..end].strip_prefix(&[mark])?).ok()?;
    *rest = &rest[end + 2..];
    number.parse().ok()
}
