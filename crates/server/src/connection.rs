//! Connections that break when the client stops reading.

use std::io::{Error, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A connection whose writes fail after the client has taken nothing for a time.
pub(crate) struct TimedConnection<S> {
    inner: S,
    limit: Duration,
    /// From the first write that has to wait until one that has not.
    wait: Option<Pin<Box<Sleep>>>,
}

impl<S: AsyncWrite + Unpin> TimedConnection<S> {
    pub(crate) fn new(inner: S, limit: Duration) -> Self {
        Self { inner, limit, wait: None }
    }

    fn timed<T>(
        &mut self,
        context: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<Result<T, Error>>,
    ) -> Poll<Result<T, Error>> {
        if let Poll::Ready(written) = write(Pin::new(&mut self.inner), context) {
            self.wait = None;
            return Poll::Ready(written);
        }
        let limit = self.limit;
        let wait = self.wait.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(wait.as_mut().poll(context));
        Poll::Ready(Err(ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedConnection<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize, Error>> {
        self.timed(context, |inner, context| inner.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize, Error>> {
        self.timed(context, |inner, context| inner.poll_write_vectored(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedConnection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &mut ReadBuf<'_>,
    ) -> Poll<Result<(), Error>> {
        Pin::new(&mut self.inner).poll_read(context, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::Instant;

    const LIMIT: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_breaks_the_connection_and_a_slow_one_does_not() {
        let (server, mut client) = duplex(4);
        let mut server = TimedConnection::new(server, LIMIT);
        // A byte every 20 seconds is slow, but each write that waits begins a new time.
        let slow = tokio::spawn(async move {
            let mut byte = [0];
            for _ in 0..8 {
                tokio::time::sleep(Duration::from_secs(20)).await;
                assert_eq!(client.read(&mut byte).await.ok(), Some(1));
            }
            client
        });
        let start = Instant::now();
        assert!(server.write_all(&[1; 12]).await.is_ok());
        assert_eq!(start.elapsed(), Duration::from_secs(160));
        // Its buffer is full, and the client is still there, but reads no more.
        let client = slow.await;
        let start = Instant::now();
        let failed = server.write_all(&[1]).await.map_err(|error| error.kind());
        assert_eq!((failed, start.elapsed()), (Err(ErrorKind::TimedOut), LIMIT));
        assert!(client.is_ok());
    }
}
