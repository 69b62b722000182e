//! Large files by the LFS protocol: a batch of questions, then for each file one PUT or several, and
//! the server's own check.
//!
//! Sources: <https://github.com/git-lfs/git-lfs/blob/main/docs/api/batch.md>, and for PUTs in parts
//! what the Hub's Python client does.

use super::{Outgoing, Publication};
use crate::error::plain;
use crate::http::{Call, Payload};
use crate::{Hub, Progress, RepositoryName, Result};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::rc::Rc;
use std::sync::Arc;
use ureq::http::Method;
use w4pack_format::digest::Hasher;

const LFS: &str = "application/vnd.git-lfs+json";

/// How large files go.
pub(super) enum Route {
    /// There are none.
    Nothing,
    /// By the LFS protocol: what the server says of each.
    Lfs(Vec<Value>),
    /// By the Hub's own.
    #[cfg(feature = "chunk-store")]
    ChunkStore,
}

impl Route {
    pub fn name(&self) -> &'static str {
        match self {
            Route::Nothing => "none",
            Route::Lfs(_) => "LFS",
            #[cfg(feature = "chunk-store")]
            Route::ChunkStore => "chunk store",
        }
    }
}

impl Hub {
    /// Asks the server for a way.
    pub(super) fn route(&self, publication: &Publication, large: &[&Outgoing]) -> Result<Route> {
        if large.is_empty() {
            return Ok(Route::Nothing);
        }
        let with_chunk_store = cfg!(feature = "chunk-store") && !publication.without_chunk_store;
        let transfers: &[&str] =
            if with_chunk_store { &["basic", "multipart", "xet"] } else { &["basic", "multipart"] };
        let objects: Vec<Value> =
            large.iter().map(|file| json!({"oid": file.sha256, "size": file.bytes})).collect();
        let body = json!({
            "operation": "upload",
            "transfers": transfers,
            "objects": objects,
            "hash_algo": "sha256",
            "ref": {"name": crate::name::MAIN},
        });
        let name = &publication.name;
        let attempt = format!("ask where the large files of `{name}` go");
        let url = format!("{}/{name}.git/info/lfs/objects/batch", self.settings.endpoint);
        let body = body.to_string();
        let call = Call::post(url, body.as_bytes(), attempt.as_str());
        let (answer, _) =
            self.http.json(&call.header("accept", LFS).header("content-type", LFS))?;
        #[cfg(feature = "chunk-store")]
        if with_chunk_store && answer["transfer"] == "xet" {
            return Ok(Route::ChunkStore);
        }
        let objects = answer["objects"].as_array().cloned().unwrap_or_default();
        for object in &objects {
            if let Some(problem) = object["error"]["message"].as_str() {
                let problem = plain(&format!("it refuses {}: {problem}", object["oid"]));
                return Err(self.answer(attempt, problem));
            }
        }
        Ok(Route::Lfs(objects))
    }

    /// Sends what the server does not have yet.
    pub(super) fn send_large(
        &self,
        name: &RepositoryName,
        large: &[&Outgoing],
        objects: Vec<Value>,
    ) -> Result<()> {
        let mut waiting = Vec::new();
        for file in large {
            let object = objects.iter().find(|object| object["oid"] == *file.sha256);
            let Some(object) = object else {
                let attempt = format!("ask where the large files of `{name}` go");
                return Err(self.answer(attempt, format!("it does not speak of `{}`", file.path)));
            };
            // Without an upload the server has the object.
            if object["actions"]["upload"].is_object() {
                waiting.push((*file, &object["actions"]));
            }
        }
        let bytes = waiting.iter().map(|(file, _)| file.bytes).sum();
        self.progress.begin("uploading", bytes);
        for (file, actions) in waiting {
            let upload = Upload::new(self, name, file)?;
            upload.run(actions)?;
        }
        Ok(())
    }
}

/// One file on its way.
struct Upload<'a> {
    hub: &'a Hub,
    file: &'a Outgoing,
    attempt: String,
    /// The hash of what has arrived, and of that with what is being sent.
    arrived: RefCell<Hasher>,
    sending: Rc<RefCell<Hasher>>,
}

impl<'a> Upload<'a> {
    fn new(hub: &'a Hub, name: &RepositoryName, file: &'a Outgoing) -> Result<Upload<'a>> {
        let attempt = format!("upload `{}` to `{name}`", file.path);
        let (arrived, sending) = Default::default();
        Ok(Upload { hub, file, attempt, arrived, sending })
    }

    fn run(&self, actions: &Value) -> Result<()> {
        let upload = &actions["upload"];
        let href = self.text(&upload["href"], "an address")?;
        match &upload["header"]["chunk_size"] {
            Value::Null => {
                self.put(href, &own_headers(upload), 0, self.file.bytes)?;
                self.check_hash()?;
            }
            size => self.in_parts(href, &upload["header"], size)?,
        }
        let verify = &actions["verify"];
        if verify.is_object() {
            let href = self.text(&verify["href"], "an address")?;
            let body = json!({"oid": self.file.sha256, "size": self.file.bytes}).to_string();
            let call = Call::post(href.into(), body.as_bytes(), self.attempt.as_str());
            self.hub.http.send(&call.header("accept", LFS).header("content-type", LFS))?;
        }
        Ok(())
    }

    /// PUTs of `size` bytes each, to addresses that stand under their numbers in the header, and then
    /// the list of their ETags.
    fn in_parts(&self, href: &str, header: &Value, size: &Value) -> Result<()> {
        let fail = |problem: &str| self.hub.answer(self.attempt.clone(), problem.into());
        let stated = size.as_u64().or_else(|| size.as_str()?.parse().ok());
        let size = stated.filter(|size| *size > 0).ok_or_else(|| fail("its chunk_size is none"))?;
        let numbered =
            header.as_object().into_iter().flatten().filter_map(|(number, address)| {
                Some((number.parse::<u64>().ok()?, address.as_str()?))
            });
        let mut addresses: Vec<(u64, &str)> = numbered.collect();
        addresses.sort_unstable();
        let numbers = addresses.iter().map(|(number, _)| *number);
        if !numbers.eq(1..=self.file.bytes.div_ceil(size)) {
            return Err(fail("its parts do not make the file"));
        }
        let mut parts = Vec::new();
        for (number, address) in addresses {
            let begin = (number - 1) * size;
            let length = size.min(self.file.bytes - begin);
            let etag = self.put(address, &[], begin, length)?;
            let etag = etag.ok_or_else(|| fail("a part has no ETag"))?;
            parts.push(json!({"partNumber": number, "etag": etag}));
        }
        // Before the server puts the parts together: they must be what was proved.
        self.check_hash()?;
        let body = json!({"oid": self.file.sha256, "parts": parts}).to_string();
        let call = Call::post(href.into(), body.as_bytes(), self.attempt.as_str());
        let call = call.header("accept", LFS).header("content-type", LFS);
        self.hub.http.send(&call).map(drop)
    }

    /// Sends so many bytes; gives the ETag. What is sent again after a failure is hashed once.
    fn put(
        &self,
        address: &str,
        headers: &[(String, String)],
        begin: u64,
        length: u64,
    ) -> Result<Option<String>> {
        let open = || -> io::Result<Box<dyn Read>> {
            let mut file = File::open(&self.file.file)?;
            file.seek(SeekFrom::Start(begin))?;
            *self.sending.borrow_mut() = self.arrived.borrow().clone();
            Ok(Box::new(Sent {
                file: file.take(length),
                hasher: self.sending.clone(),
                progress: self.hub.progress.clone(),
            }))
        };
        let mut call = Call::get(address.into(), self.attempt.as_str());
        call.method = Method::PUT;
        call.body = Payload::Stream(length, &open);
        call.extra = headers.to_vec();
        let answer = self.hub.http.send(&call)?;
        *self.arrived.borrow_mut() = self.sending.borrow().clone();
        Ok(answer.header("etag").map(str::to_string))
    }

    fn check_hash(&self) -> Result<()> {
        self.file.check_hash(self.arrived.borrow().clone().finish())
    }

    fn text<'v>(&self, value: &'v Value, what: &str) -> Result<&'v str> {
        value.as_str().ok_or_else(|| {
            self.hub.answer(self.attempt.clone(), format!("an upload without {what}"))
        })
    }
}

/// What the server wants to see again with an upload; how long it is and where it goes is said anyway.
fn own_headers(upload: &Value) -> Vec<(String, String)> {
    let headers = upload["header"].as_object().into_iter().flatten();
    let texts = headers.filter_map(|(name, value)| Some((name, value.as_str()?)));
    let of_transport = ["content-length", "host", "transfer-encoding", "connection"];
    texts
        .filter(|(name, _)| !of_transport.contains(&name.to_ascii_lowercase().as_str()))
        .map(|(name, value)| (name.clone(), value.to_string()))
        .collect()
}

/// A part of a file that hashes and counts what is read of it.
struct Sent {
    file: io::Take<File>,
    hasher: Rc<RefCell<Hasher>>,
    progress: Arc<dyn Progress>,
}

impl Read for Sent {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.file.read(buffer)?;
        self.hasher.borrow_mut().update(&buffer[..length]);
        self.progress.advance(length as u64);
        Ok(length)
    }
}
