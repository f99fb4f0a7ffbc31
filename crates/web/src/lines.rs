//! Reads an answer line by line, as its parts come.

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt, stream};

/// The lines of a stream, without their ends. A broken stream ends.
pub(crate) fn lines<E>(
    parts: impl Stream<Item = Result<Bytes, E>> + Send + Unpin + 'static,
) -> impl Stream<Item = Bytes> + Unpin
where
    E: Send + 'static,
{
    let state = (parts, BytesMut::new());
    Box::pin(stream::unfold(
        state,
        async |(mut parts, mut kept): (_, BytesMut)| {
            loop {
                if let Some(end) = kept.iter().position(|&byte| byte == b'\n') {
                    let mut line = kept.split_to(end + 1);
                    line.truncate(end);
                    return Some((line.freeze(), (parts, kept)));
                }
                kept.extend_from_slice(&parts.next().await?.ok()?);
            }
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_put_together_from_parts() {
        let parts = ["a\nb", "c", "\n\nd"].map(|part| Ok::<_, ()>(Bytes::from(part)));
        let lines: Vec<_> = lines(stream::iter(parts)).collect().await;
        assert_eq!(lines, ["a", "bc", ""]);
    }
}
