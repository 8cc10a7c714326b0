//! Objects: put, got, listed, removed, under the conditions that each service has.

use super::{Answer, Cloud, Object, Request, State};

/// The date of every object.
const MODIFIED: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
/// Objects of a part of a list: small, so that lists go on.
const LISTED_MAX: usize = 3;

/// What the store answers.
pub(super) fn answer(cloud: Cloud, state: &mut State, request: &Request) -> Answer {
    let by = match signed_by(cloud, state, request) {
        Ok(by) => by,
        Err(code) => return refused(403, code),
    };
    let query: String = request.query.iter().map(|(name, value)| format!(" {name}={value}")).collect();
    state.requests.push((format!("{} {}{query}", request.method, request.path), by));
    let path = request.path.strip_prefix(if cloud == Cloud::Azure { "/me/" } else { "/" });
    let Some(path) = path else { return refused(404, "NoSuchBucket") };
    let name = path.to_owned();
    let has = |name: &str| request.query.contains_key(name);
    match request.method.as_str() {
        "GET" if !path.contains('/') => list(cloud, state, request, path),
        "GET" | "HEAD" => get(cloud, state, request, &name),
        "PUT" if request.query.get("comp").is_some_and(|comp| comp == "block") => {
            part(state, request, &name, request.query["blockid"].clone())
        }
        "PUT" if request.query.get("comp").is_some_and(|comp| comp == "blocklist") => {
            complete(cloud, state, request, &name, "Latest")
        }
        "PUT" if has("partNumber") => {
            part(state, request, &request.query["uploadId"], request.query["partNumber"].clone())
        }
        "PUT" => put(cloud, state, request, name, request.body.clone(), mark(request)),
        "POST" if has("uploads") => {
            state.versions += 1;
            // It keeps the mark until the end.
            let id = format!("{}-{}", mark(request).unwrap_or_default(), state.versions);
            let body = format!("<R><UploadId>{id}</UploadId></R>");
            (200, Vec::new(), body.into_bytes())
        }
        "POST" => complete(cloud, state, request, &name, "PartNumber"),
        "DELETE" if has("uploadId") => {
            state.parts.remove(&request.query["uploadId"]);
            (204, Vec::new(), Vec::new())
        }
        "DELETE" => match state.objects.remove(&name) {
            Some(_) if cloud == Cloud::Azure => (202, Vec::new(), Vec::new()),
            Some(_) => (204, Vec::new(), Vec::new()),
            None => refused(404, "NoSuchKey"),
        },
        _ => refused(400, "NotImplemented"),
    }
}

/// The credentials of a request, which must be the newest that were given, or fixed ones.
fn signed_by(cloud: Cloud, state: &State, request: &Request) -> Result<String, &'static str> {
    let authorization = request.fields.get("authorization").map_or("", String::as_str);
    let token = authorization.strip_prefix("Bearer ");
    let by = match cloud {
        Cloud::Amazon => {
            let (_, key) = authorization.split_once("Credential=").ok_or("MissingSignature")?;
            let (key, scope) = key.split_once('/').ok_or("MissingScope")?;
            if !scope.contains("/us-east-1/s3/aws4_request") || !scope.contains("host;") {
                return Err("WrongScope");
            }
            key
        }
        Cloud::Google => token.ok_or("MissingToken")?,
        Cloud::Azure if !request.fields.contains_key("x-ms-version") => return Err("MissingVersion"),
        Cloud::Azure if request.query.contains_key("sig") => request.query["sig"].as_str(),
        Cloud::Azure if !request.fields.contains_key("x-ms-date") => return Err("MissingDate"),
        Cloud::Azure => match authorization.strip_prefix("SharedKey me:") {
            Some(_) => "me",
            None => token.ok_or("MissingToken")?,
        },
    };
    match by.strip_prefix("KEY-").or_else(|| by.strip_prefix("TOKEN-")) {
        Some(number) => {
            let given =
                number.parse::<usize>().ok().and_then(|number| state.given.get(number.checked_sub(1)?));
            let is_good = given.is_some_and(|given| given.elapsed().as_secs() < state.lifetime_s);
            if is_good { Ok(by.to_owned()) } else { Err("ExpiredToken") }
        }
        None => Ok(by.to_owned()),
    }
}

/// Which upload makes an object.
fn mark(request: &Request) -> Option<String> {
    let marks = ["x-amz-meta-cowhand-upload", "x-goog-meta-cowhand-upload", "x-ms-meta-cowhand_upload"];
    marks.iter().find_map(|name| request.fields.get(*name).cloned())
}

fn refused(status: u16, code: &str) -> Answer {
    (status, Vec::new(), format!("<Error><Code>{code}</Code></Error>").into_bytes())
}

fn get(cloud: Cloud, state: &State, request: &Request, name: &str) -> Answer {
    let Some(Object { bytes, version, mark }) = state.objects.get(name) else {
        return refused(404, "NoSuchKey");
    };
    let etag = format!("\"{version}\"");
    if request.fields.get("if-match").is_some_and(|wanted| *wanted != etag) {
        return refused(412, "PreconditionFailed");
    }
    let mut fields = vec![("ETag", etag), ("Last-Modified", MODIFIED.to_owned())];
    let names = ["x-amz-meta-cowhand-upload", "x-goog-meta-cowhand-upload", "x-ms-meta-cowhand_upload"];
    fields.extend(mark.clone().map(|mark| (names[cloud as usize], mark)));
    if cloud == Cloud::Google {
        fields.push(("x-goog-generation", version.to_string()));
    }
    let range = request.fields.get("range").and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    match range {
        Some((first, last)) => {
            let (first, last): (usize, usize) =
                (first.parse().expect("a range"), last.parse().expect("a range"));
            let last = last.min(bytes.len() - 1);
            fields.push(("Content-Range", format!("bytes {first}-{last}/{}", bytes.len())));
            (206, fields, bytes[first..=last].to_vec())
        }
        None => {
            fields.push(("Content-Length", bytes.len().to_string()));
            (200, fields, bytes.clone())
        }
    }
}

/// Whether the conditions of a request are met.
fn is_met(cloud: Cloud, state: &State, request: &Request, name: &str) -> Result<(), Answer> {
    let there = state.objects.get(name).map(|object| object.version);
    let field = |name: &str| request.fields.get(name).map(String::as_str);
    if let (Cloud::Google, Some(generation)) = (cloud, field("x-goog-if-generation-match")) {
        let is_it = there.unwrap_or(0).to_string() == generation;
        return if is_it { Ok(()) } else { Err(refused(412, "PreconditionFailed")) };
    }
    // Google's are for reading.
    if cloud != Cloud::Google && field("if-none-match") == Some("*") && there.is_some() {
        let (status, code) =
            if cloud == Cloud::Azure { (409, "BlobAlreadyExists") } else { (412, "PreconditionFailed") };
        return Err(refused(status, code));
    }
    match field("if-match").filter(|_| cloud != Cloud::Google) {
        Some(etag) if there.is_none_or(|there| format!("\"{there}\"") != etag) => {
            Err(refused(412, "PreconditionFailed"))
        }
        _ => Ok(()),
    }
}

fn put(
    cloud: Cloud,
    state: &mut State,
    request: &Request,
    name: String,
    bytes: Vec<u8>,
    mark: Option<String>,
) -> Answer {
    let is_list = request.query.contains_key("comp");
    if cloud == Cloud::Azure
        && !is_list
        && request.fields.get("x-ms-blob-type").is_none_or(|kind| kind != "BlockBlob")
    {
        return refused(400, "MissingRequiredHeader");
    }
    if let Err(answer) = is_met(cloud, state, request, &name) {
        return answer;
    }
    state.versions += 1;
    let version = state.versions;
    state.objects.insert(name, Object { bytes, version, mark });
    let body = format!("<R><ETag>\"{version}\"</ETag></R>").into_bytes();
    (if cloud == Cloud::Azure { 201 } else { 200 }, vec![("ETag", format!("\"{version}\""))], body)
}

fn part(state: &mut State, request: &Request, upload: &str, number: String) -> Answer {
    let etag = format!("\"part-{number}\"");
    state.parts.entry(upload.to_owned()).or_default().insert(number, request.body.clone());
    (201, vec![("ETag", etag)], Vec::new())
}

fn complete(cloud: Cloud, state: &mut State, request: &Request, name: &str, tag: &str) -> Answer {
    let conditional = ["if-none-match", "if-match", "x-goog-if-generation-match"];
    if cloud == Cloud::Google && conditional.iter().any(|name| request.fields.contains_key(*name)) {
        return refused(400, "NotImplemented");
    }
    let upload = request.query.get("uploadId").map_or(name, String::as_str).to_owned();
    let Some(parts) = state.parts.get(&upload) else { return refused(404, "NoSuchUpload") };
    let body = String::from_utf8_lossy(&request.body).into_owned();
    let tag = format!("<{tag}>");
    let numbers = body.split(&tag).skip(1).filter_map(|rest| rest.split_once('<'));
    let mut bytes = Vec::new();
    for (number, _) in numbers {
        match parts.get(number) {
            Some(part) => bytes.extend(part),
            None => return refused(400, "InvalidPart"),
        }
    }
    let mark = mark(request).or_else(|| Some(upload.rsplit_once('-')?.0.to_owned()));
    let answer = put(cloud, state, request, name.to_owned(), bytes, mark);
    if answer.0 < 300 {
        state.parts.remove(&upload);
    }
    answer
}

fn list(cloud: Cloud, state: &State, request: &Request, bucket: &str) -> Answer {
    let is_list = match cloud {
        Cloud::Azure => request.query.get("comp").is_some_and(|comp| comp == "list"),
        Cloud::Amazon | Cloud::Google => request.query.get("list-type").is_some_and(|kind| kind == "2"),
    };
    if !is_list {
        return refused(400, "NotImplemented");
    }
    let query = |name: &str| request.query.get(name).map_or("", String::as_str);
    let (prefix, delimiter) = (query("prefix"), query("delimiter"));
    let from = query(if cloud == Cloud::Azure { "marker" } else { "continuation-token" });
    let keys = state.objects.iter().filter_map(|(name, object)| {
        let key = name.strip_prefix(bucket)?.strip_prefix('/')?;
        let behind = key.strip_prefix(prefix)?;
        let is_here = delimiter.is_empty() || !behind.contains(delimiter);
        (is_here && key > from).then_some((key, object.bytes.len()))
    });
    let keys: Vec<(&str, usize)> = keys.collect();
    let page = &keys[..keys.len().min(LISTED_MAX)];
    let next = if page.len() < keys.len() { page.last().map_or("", |(key, _)| key) } else { "" };
    let body = match cloud {
        Cloud::Azure => {
            let blobs: String = page
                .iter()
                .map(|(key, bytes)| {
                    format!(
                        "<Blob><Name>{key}</Name><Properties><Last-Modified>{MODIFIED}</Last-Modified>\
                         <Content-Length>{bytes}</Content-Length></Properties></Blob>"
                    )
                })
                .collect();
            format!(
                "<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker>{next}</NextMarker></EnumerationResults>"
            )
        }
        Cloud::Amazon | Cloud::Google => {
            let contents: String = page
                .iter()
                .map(|(key, bytes)| {
                    format!(
                        "<Contents><Key>{key}</Key><LastModified>1994-11-06T08:49:37.000Z</LastModified><Size>{bytes}</Size></Contents>"
                    )
                })
                .collect();
            let token = if next.is_empty() {
                String::new()
            } else {
                format!("<NextContinuationToken>{next}</NextContinuationToken>")
            };
            format!("<R><IsTruncated>{}</IsTruncated>{token}{contents}</R>", !next.is_empty())
        }
    };
    (200, Vec::new(), body.into_bytes())
}
