//! The Hub's own host: what is in a repository, and how something gets in.

use crate::repository::{Access, Commit, Entry, Repository, hex};
use crate::wire::{Answer, Request};
use crate::{FakeHub, TOKEN, Transfer, is_large};
use base64::Engine;
use serde_json::{Value, json};
use sha2::Digest;
use std::sync::Arc;

impl FakeHub {
    pub(crate) fn api(&self, request: &Request) -> Answer {
        let path = request.path.trim_start_matches('/');
        let parts: Vec<&str> = path.split('/').collect();
        let is_read = matches!(request.method.as_str(), "GET" | "HEAD");
        if let Some(token) = request.header("authorization")
            && token != format!("Bearer {TOKEN}")
        {
            return Answer::error(401, "", "Invalid credentials in Authorization header");
        }
        if !is_read
            && request.header("authorization").is_none()
            && parts[..] != ["api", "validate-yaml"]
        {
            return Answer::error(401, "", "Invalid username or password.");
        }
        match (request.method.as_str(), &parts[..]) {
            ("POST", ["api", "repos", "create"]) => self.create(request),
            ("POST", ["api", "validate-yaml"]) => {
                Answer::json(&json!({"errors": [], "warnings": []}))
            }
            ("GET", ["api", "whoami-v2"]) => {
                Answer::json(&json!({"name": "somebody", "type": "user"}))
            }
            ("POST", ["api", "complete", sha256]) => self.complete(sha256, request),
            ("GET", ["api", "models", owner, name, rest @ ..]) => {
                self.read(&format!("{owner}/{name}"), rest, request)
            }
            ("POST", ["api", "models", owner, name, "preupload", _]) => {
                self.preupload(&format!("{owner}/{name}"), request)
            }
            ("POST", ["api", "models", owner, name, "commit", revision @ ..]) => {
                self.take_commit(&format!("{owner}/{name}"), &revision.join("/"), request)
            }
            ("POST", [owner, name, "info", "lfs", "objects", last]) => {
                let name = name.trim_end_matches(".git");
                match *last {
                    "batch" => self.batch(&format!("{owner}/{name}"), request),
                    _ => self.verify(request),
                }
            }
            ("GET" | "HEAD", [owner, name, "resolve", revision, path @ ..]) => {
                self.resolve(&format!("{owner}/{name}"), revision, &path.join("/"), request)
            }
            _ => Answer::error(404, "", &format!("no {} {}", request.method, request.path)),
        }
    }

    /// Finds a commit for a reader, or says why not in the Hub's words.
    fn find(&self, name: &str, revision: &str, request: &Request) -> Result<Commit, Answer> {
        let state = self.state();
        let known = request.header("authorization").is_some();
        let missing = || match known {
            // Who is nobody is not told whether it exists.
            false => Answer::error(401, "RepoNotFound", "Invalid username or password."),
            true => Answer::error(404, "RepoNotFound", "Repository not found"),
        };
        let repository = state.repositories.get(name).ok_or_else(missing)?;
        match repository.access {
            Access::Private if !known => return Err(missing()),
            _ => {}
        }
        repository.find(revision).cloned().ok_or_else(|| {
            Answer::error(404, "RevisionNotFound", &format!("Invalid rev id: {revision}"))
        })
    }

    fn read(&self, name: &str, rest: &[&str], request: &Request) -> Answer {
        let (what, revision) = match rest {
            [] => ("revision", "main".to_string()),
            ["revision", revision @ ..] => ("revision", revision.join("/")),
            ["tree", revision, ..] => ("tree", (*revision).to_string()),
            ["xet-write-token", ..] => {
                return Answer::error(501, "", "this Hub has no chunk store");
            }
            _ => return Answer::error(404, "", "no such question"),
        };
        let commit = match self.find(name, &revision, request) {
            Ok(commit) => commit,
            Err(answer) => return answer,
        };
        if what == "tree" {
            let below = rest[2..].join("/");
            let has = |path: &&String| below.is_empty() || path.starts_with(&format!("{below}/"));
            if commit.files.keys().filter(has).count() == 0 {
                return Answer::error(404, "EntryNotFound", "no such folder");
            }
            return self.tree(&commit, request);
        }
        let siblings: Vec<Value> =
            commit.files.keys().map(|path| json!({"rfilename": path})).collect();
        let access = self.state().repositories.get(name).map(|found| found.access);
        Answer::json(&json!({
            "id": name,
            "sha": commit.id,
            "private": access == Some(Access::Private),
            "gated": if access == Some(Access::Gated) { json!("manual") } else { json!(false) },
            "siblings": siblings,
        }))
    }

    fn tree(&self, commit: &Commit, request: &Request) -> Answer {
        let page = self.state().page;
        let first: usize = request.parameter("cursor").and_then(|at| at.parse().ok()).unwrap_or(0);
        let mut lines: Vec<Value> =
            commit.files.iter().map(|(path, entry)| entry.listed(path)).collect();
        if commit.files.keys().any(|path| path.starts_with("w4pack/")) {
            lines.push(
                json!({"type": "directory", "path": "w4pack", "size": 0, "oid": "0".repeat(40)}),
            );
        }
        let end = (first + page).min(lines.len());
        let answer = Answer::json(&json!(lines[first.min(end)..end]));
        if end == lines.len() {
            return answer;
        }
        let next = format!("{}{}?recursive=true&cursor={end}", self.endpoint(), request.path);
        answer.header("Link", format!("<{next}>; rel=\"next\""))
    }

    fn resolve(&self, name: &str, revision: &str, path: &str, request: &Request) -> Answer {
        let commit = match self.find(name, revision, request) {
            Ok(commit) => commit,
            Err(answer) => return answer,
        };
        if self.state().repositories[name].access == Access::Gated {
            let message = "Access to this model is restricted. You must be authenticated";
            let status = if request.header("authorization").is_some() { 403 } else { 401 };
            return Answer::error(status, "GatedRepo", message);
        }
        let Some(entry) = commit.files.get(path) else {
            return Answer::error(404, "EntryNotFound", "Entry not found")
                .header("X-Repo-Commit", &commit.id);
        };
        if !entry.large {
            let etag = format!("\"{}\"", entry.git());
            return Answer::content(entry.content.clone(), request)
                .header("X-Repo-Commit", &commit.id)
                .header("ETag", etag);
        }
        let sha256 = entry.sha256();
        Answer::new(302, "")
            .header("X-Repo-Commit", &commit.id)
            .header("X-Linked-Etag", format!("\"{sha256}\""))
            .header("X-Linked-Size", entry.content.len().to_string())
            .header("Location", format!("{}/blobs/{sha256}", self.storage()))
    }

    fn create(&self, request: &Request) -> Answer {
        let asked = body(request);
        let name = match (asked["organization"].as_str(), asked["name"].as_str()) {
            (Some(owner), Some(name)) => format!("{owner}/{name}"),
            (None, Some(name)) if name.contains('/') => name.into(),
            _ => format!("somebody/{}", asked["name"].as_str().unwrap_or_default()),
        };
        let mut state = self.state();
        if state.repositories.contains_key(&name) {
            return Answer::error(409, "", "You already created this model repo");
        }
        let is_private = asked["private"] == true || asked["visibility"] == "private";
        let access = if is_private { Access::Private } else { Access::Public };
        state.repositories.insert(name.clone(), Repository::new("initial commit", access));
        let url = format!("{}/{name}", self.endpoint());
        Answer::json(&json!({"url": url, "name": name, "id": name}))
    }

    fn preupload(&self, name: &str, request: &Request) -> Answer {
        let state = self.state();
        if !state.repositories.contains_key(name) {
            return Answer::error(404, "RepoNotFound", "Repository not found");
        }
        let asked = body(request);
        let files = asked["files"].as_array().into_iter().flatten().map(|file| {
            let path = file["path"].as_str().unwrap_or_default();
            let size = file["size"].as_u64().unwrap_or(0) as usize;
            let mode = if is_large(path, size, state.large_from) { "lfs" } else { "regular" };
            json!({"path": path, "uploadMode": mode, "shouldIgnore": false})
        });
        Answer::json(&json!({"files": files.collect::<Vec<_>>()}))
    }

    fn batch(&self, name: &str, request: &Request) -> Answer {
        let asked = body(request);
        let knows = |transfer: &str| {
            asked["transfers"].as_array().is_some_and(|list| list.iter().any(|one| one == transfer))
        };
        let transfer = self.state().transfer.unwrap_or(Transfer::Basic);
        let chosen = match transfer {
            Transfer::ChunkStore if knows("xet") => "xet",
            Transfer::Multipart(_) if knows("multipart") => "multipart",
            _ => "basic",
        };
        let objects = asked["objects"].as_array().into_iter().flatten().map(|object| {
            let oid = object["oid"].as_str().unwrap_or_default();
            let size = object["size"].as_u64().unwrap_or(0) as usize;
            let mut line = json!({"oid": oid, "size": size});
            if self.state().objects.contains_key(oid) {
                return line;
            }
            let verify = format!("{}/{name}.git/info/lfs/objects/verify", self.endpoint());
            let upload = match transfer {
                Transfer::Multipart(chunk) if chosen == "multipart" => {
                    let mut header = json!({"chunk_size": chunk.to_string()});
                    for number in 1..=size.div_ceil(chunk) {
                        let part = format!("{}/upload/{oid}/{number}", self.storage());
                        header[format!("{number:05}")] = json!(part);
                    }
                    json!({"href": format!("{}/api/complete/{oid}", self.endpoint()), "header": header})
                }
                _ => json!({"href": format!("{}/upload/{oid}", self.storage())}),
            };
            line["actions"] = json!({"upload": upload, "verify": {"href": verify}});
            line
        });
        let objects: Vec<Value> = objects.collect();
        Answer::json(&json!({"transfer": chosen, "objects": objects}))
            .header("Content-Type", "application/vnd.git-lfs+json")
    }

    /// Puts the parts of an upload together.
    fn complete(&self, sha256: &str, request: &Request) -> Answer {
        let asked = body(request);
        let mut state = self.state();
        let parts = state.parts.remove(sha256).unwrap_or_default();
        let mut content = Vec::new();
        for (place, said) in asked["parts"].as_array().into_iter().flatten().enumerate() {
            let Some(part) = parts.get(&(place + 1)) else {
                return Answer::error(400, "", &format!("part {} never came", place + 1));
            };
            let etag = format!("\"{}\"", hex(&sha2::Sha256::digest(part)));
            if said["partNumber"] != place + 1 || said["etag"] != etag {
                return Answer::error(400, "", &format!("part {} has another ETag", place + 1));
            }
            content.extend(part);
        }
        state.objects.insert(sha256.into(), Arc::new(content));
        Answer::json(&json!({"success": true}))
    }

    fn verify(&self, request: &Request) -> Answer {
        let asked = body(request);
        let state = self.state();
        let oid = asked["oid"].as_str().unwrap_or_default();
        let right = state.objects.get(oid).is_some_and(|content| {
            hex(&sha2::Sha256::digest(&**content)) == oid && asked["size"] == content.len()
        });
        if right {
            Answer::json(&json!({}))
        } else {
            Answer::error(422, "", "the object is not whole")
        }
    }

    fn take_commit(&self, name: &str, revision: &str, request: &Request) -> Answer {
        let mut state = self.state();
        let state = &mut *state;
        let Some(repository) = state.repositories.get_mut(name) else {
            return Answer::error(404, "RepoNotFound", "Repository not found");
        };
        let Some(head) = repository.find(revision).cloned() else {
            return Answer::error(404, "RevisionNotFound", "no such branch");
        };
        let is_request = request.parameter("create_pr") == Some("1");
        let mut files = head.files;
        let mut title = String::new();
        for line in request.body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let Ok(line) = serde_json::from_slice::<Value>(line) else {
                return Answer::error(400, "", "a line is not JSON");
            };
            let value = &line["value"];
            let path = value["path"].as_str().unwrap_or_default().to_string();
            match line["key"].as_str() {
                Some("header") => {
                    title = value["summary"].as_str().unwrap_or_default().into();
                    let parent = value["parentCommit"].as_str();
                    if parent.is_some_and(|parent| parent != head.id) {
                        let message = "A commit has happened since. Please refresh and try again.";
                        return Answer::error(412, "", message);
                    }
                }
                Some("file") => {
                    let content = value["content"].as_str().unwrap_or_default();
                    let decoder = base64::engine::general_purpose::STANDARD;
                    let Ok(content) = decoder.decode(content) else {
                        return Answer::error(400, "", "content is not base64");
                    };
                    files.insert(path, Entry { content: Arc::new(content), large: false });
                }
                Some("lfsFile") => {
                    let oid = value["oid"].as_str().unwrap_or_default();
                    let Some(content) = state.objects.get(oid) else {
                        return Answer::error(400, "", &format!("{path}: the object never came"));
                    };
                    files.insert(path, Entry { content: content.clone(), large: true });
                }
                other => return Answer::error(400, "", &format!("unknown line {other:?}")),
            }
        }
        let branch = if is_request { "refs/pr/1" } else { revision };
        let id = repository.commit(branch, files, &title);
        let url = format!("{}/{name}/commit/{id}", self.endpoint());
        let mut said = json!({"success": true, "commitOid": id, "commitUrl": url});
        if is_request {
            said["pullRequestUrl"] = json!(format!("{}/{name}/discussions/1", self.endpoint()));
        }
        Answer::json(&said)
    }
}

fn body(request: &Request) -> Value {
    serde_json::from_slice(&request.body).unwrap_or_default()
}
