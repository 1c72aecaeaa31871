//! The limits of every call. A call's connection counts as active while the call lasts. A request that is one message
//! has a limit of time and of size.

use crate::caller::Caller;
use crate::error::Error;
use crate::{MAX_ASKED, connection_limiter};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tower::{Layer, Service};

/// Calls whose requests are streams. The readers of the streams limit them.
const STREAMED: [&str; 4] = ["Encrypt", "Decrypt", "ImportState", "Answer"];

/// Puts the limits around a service.
#[derive(Debug, Clone)]
pub struct CallLimits {
    /// The time limit of a whole request that is one message.
    pub request: Duration,
}

impl<S> Layer<S> for CallLimits {
    type Service = LimitedCalls<S>;

    fn layer(&self, inner: S) -> LimitedCalls<S> {
        LimitedCalls { inner, request: self.request }
    }
}

/// A service under [`CallLimits`].
#[derive(Debug, Clone)]
pub struct LimitedCalls<S> {
    inner: S,
    request: Duration,
}

impl<S> Service<Request<Body>> for LimitedCalls<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let path = request.uri().path();
        // A health check takes no role, so it does not make the connection active.
        let caller = request.extensions().get::<Caller>();
        let work = caller.map(Caller::call).filter(|_| path.starts_with("/fedcipher."));
        let method = path.rsplit('/').next().unwrap_or_default();
        let request = if STREAMED.contains(&method) {
            request
        } else {
            let seconds = self.request;
            request.map(|body| Body::new(SingleRequest { body, left: MAX_ASKED, until: None, seconds }))
        };
        let answer = self.inner.call(request);
        Box::pin(async move { Ok(answer.await?.map(|body| Body::new(CountedAnswer { body, _under_way: work }))) })
    }
}

/// The body of a request that is one message.
struct SingleRequest {
    body: Body,
    left: usize,
    /// The deadline. It starts with the first poll, which follows the call at once.
    until: Option<Pin<Box<Sleep>>>,
    seconds: Duration,
}

impl http_body::Body for SingleRequest {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let seconds = self.seconds;
        let until = self.until.get_or_insert_with(|| Box::pin(tokio::time::sleep(seconds)));
        if until.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err(Error::Stalled { seconds: seconds.as_secs() }.into())));
        }
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(cx));
        let Some(Ok(part)) = &frame else { return Poll::Ready(frame) };
        match self.left.checked_sub(part.data_ref().map_or(0, Bytes::len)) {
            Some(left) => self.left = left,
            None => {
                let error = Error::Protocol(format!("a request of more than {MAX_ASKED} bytes"));
                return Poll::Ready(Some(Err(error.into())));
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer. The call ends when this is dropped.
struct CountedAnswer {
    body: Body,
    _under_way: Option<connection_limiter::Work>,
}

impl http_body::Body for CountedAnswer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
