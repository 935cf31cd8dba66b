//! Real servers of buckets for a test. The one here speaks S3's protocol, and Google's, which is the same but for the signatures: it
//! checks those, counts what is stored, and misbehaves when it is told to. Azure's is in `azurite`.

pub mod azurite;
mod google;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// The key that it knows, and its secret.
pub const KEYS: (&str, &str) = ("AKEXAMPLES3S", "SKEXAMPLES3S");

/// What it does with uploads of packs.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Mood {
    /// What they ask for.
    #[default]
    Willing,
    /// Stores this many, and leaves later ones without an answer.
    Hangs { after: usize },
    /// Stores this many, answers 503 to as many as the second number says, and is willing again.
    #[allow(dead_code, reason = "not every file of tests has such a server")]
    Busy { after: usize, times: usize },
    /// Says that it has stored them, and has not.
    #[allow(dead_code, reason = "as above")]
    Forgetful,
    /// Refuses every request with this status and code.
    Refuses(u16, &'static str),
}

#[derive(Default)]
struct Seen {
    mood: Mood,
    /// Size of each pack that was to be stored since the mood was last set.
    packs: Vec<(String, u64)>,
}

/// A server with an empty bucket `images`.
pub struct BucketServer {
    pub addr: SocketAddr,
    root: tempfile::TempDir,
    account: tempfile::NamedTempFile,
    seen: Arc<Mutex<Seen>>,
    moods: watch::Sender<()>,
    runtime: Option<Runtime>,
}

impl Drop for BucketServer {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

impl BucketServer {
    pub fn start() -> BucketServer {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("images")).unwrap();
        let files = s3s_fs::FileSystem::new(root.path()).unwrap();
        let same = s3s_fs::FileSystem::new(root.path()).unwrap();
        let google = s3s::service::S3ServiceBuilder::new(same).build();
        let mut builder = s3s::service::S3ServiceBuilder::new(files);
        builder.set_auth(s3s::auth::SimpleAuth::from_single(KEYS.0, KEYS.1));
        let known = google::Account::new();
        let account = tempfile::NamedTempFile::new().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let addr = listener.local_addr().unwrap();
        std::fs::write(&account, known.file(&format!("http://{addr}"))).unwrap();
        let services = Arc::new(Services {
            s3: builder.build(),
            google,
            account: known,
        });
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let (moods, mood) = watch::channel(());
        let noted = seen.clone();
        runtime.spawn(async move {
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                let (services, seen, mood) = (services.clone(), noted.clone(), mood.clone());
                let answer = service_fn(move |request| {
                    answer(services.clone(), seen.clone(), mood.clone(), request)
                });
                tokio::spawn(async move {
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(hyper_util::rt::TokioIo::new(tcp), answer)
                        .await;
                });
            }
        });
        BucketServer {
            addr,
            root,
            account,
            seen,
            moods,
            runtime: Some(runtime),
        }
    }

    /// Sets what it does from now on; uploads that were left without an answer are done.
    pub fn set(&self, mood: Mood) {
        *self.seen.lock().unwrap() = Seen {
            mood,
            packs: Vec::new(),
        };
        self.moods.send_replace(());
    }

    /// Bytes and number of the packs that were sent here since the mood was last set.
    pub fn sent(&self) -> (u64, usize) {
        let seen = self.seen.lock().unwrap();
        (seen.packs.iter().map(|pack| pack.1).sum(), seen.packs.len())
    }

    /// The files under a prefix of the bucket.
    pub fn files(&self, prefix: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut dirs = vec![self.root.path().join("images").join(prefix)];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
                match entry.file_type().unwrap().is_dir() {
                    true => dirs.push(entry.path()),
                    false => found.push(entry.path()),
                }
            }
        }
        found
    }

    /// Bytes of the packs that are stored.
    pub fn stored_bytes(&self, prefix: &str) -> u64 {
        let packs = self.files(prefix).into_iter();
        let packs = packs.filter(|path| path.extension().is_some_and(|e| e == "pack"));
        packs.map(|path| path.metadata().unwrap().len()).sum()
    }

    /// What a process needs in its environment to use it as S3.
    pub fn environment(&self) -> Vec<(String, String)> {
        let url = format!("http://{}", self.addr);
        let all = [
            ("AWS_ENDPOINT_URL", &*url),
            ("AWS_ACCESS_KEY_ID", KEYS.0),
            ("AWS_SECRET_ACCESS_KEY", KEYS.1),
            ("AWS_REGION", "us-east-1"),
        ];
        all.map(|(name, value)| (name.into(), value.into())).into()
    }

    /// What a process needs in its environment to use it as Google's storage.
    pub fn google_environment(&self) -> Vec<(String, String)> {
        let file = self.account.path().display().to_string();
        vec![("GOOGLE_SERVICE_ACCOUNT".into(), file)]
    }
}

/// Both protocols, over the same files.
struct Services {
    s3: s3s::service::S3Service,
    /// Without signatures: what is asked of it has shown a token.
    google: s3s::service::S3Service,
    account: google::Account,
}

/// A pack that is being stored; one that its sender has cut off doesn't count.
struct Storing {
    seen: Arc<Mutex<Seen>>,
    path: String,
    done: bool,
}

impl Drop for Storing {
    fn drop(&mut self) {
        if !self.done {
            let mut seen = self.seen.lock().unwrap();
            seen.packs.retain(|(path, _)| *path != self.path);
        }
    }
}

async fn answer(
    services: Arc<Services>,
    seen: Arc<Mutex<Seen>>,
    mut moods: watch::Receiver<()>,
    mut request: Request<Incoming>,
) -> Result<Response<s3s::Body>, s3s::HttpError> {
    moods.borrow_and_update();
    let path = request.uri().path().to_owned();
    let mut storing = None;
    let mood = {
        let known = seen.clone();
        let mut seen = seen.lock().unwrap();
        let count = seen.packs.len();
        match (seen.mood.clone(), request.method()) {
            (Mood::Refuses(status, code), _) => Mood::Refuses(status, code),
            (mood, &Method::PUT) if path.ends_with(".pack") => {
                let bytes = request.headers()["content-length"].to_str().unwrap();
                let now = match mood {
                    Mood::Hangs { after } if count < after => Mood::Willing,
                    Mood::Busy { after, .. } if count < after => Mood::Willing,
                    Mood::Busy { times: 0, .. } => Mood::Willing,
                    other => other,
                };
                match (&now, &mut seen.mood) {
                    (Mood::Busy { .. }, Mood::Busy { times, .. }) => *times -= 1,
                    (Mood::Hangs { .. }, _) => {}
                    _ => {
                        seen.packs.push((path.clone(), bytes.parse().unwrap()));
                        storing = Some(Storing {
                            seen: known,
                            path,
                            done: false,
                        });
                    }
                }
                now
            }
            _ => Mood::Willing,
        }
    };
    let short = |status: u16, body: String| {
        let answer = Response::builder().status(status).header("etag", "\"0\"");
        Ok(answer.body(s3s::Body::from(body)).unwrap())
    };
    let service = match google::translate(&services.account, request.headers_mut()) {
        None => &services.s3,
        Some(true) => &services.google,
        Some(false) => {
            return short(
                401,
                "<Error><Code>AuthenticationRequired</Code></Error>".into(),
            );
        }
    };
    match mood {
        Mood::Willing => {
            let answer = service.call(request.map(s3s::Body::from)).await;
            if let Some(storing) = &mut storing {
                storing.done = answer.as_ref().is_ok_and(|a| a.status().is_success());
            }
            answer
        }
        Mood::Hangs { .. } => {
            let _ = moods.changed().await;
            short(503, String::new())
        }
        Mood::Busy { .. } => {
            let _ = request.into_body().collect().await;
            short(503, "<Error><Code>SlowDown</Code></Error>".into())
        }
        Mood::Forgetful => {
            if let Some(storing) = &mut storing {
                storing.done = true;
            }
            let _ = request.into_body().collect().await;
            short(200, String::new())
        }
        Mood::Refuses(status, code) => {
            let _ = request.into_body().collect().await;
            short(status, format!("<Error><Code>{code}</Code></Error>"))
        }
    }
}
