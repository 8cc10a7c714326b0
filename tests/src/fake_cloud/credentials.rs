//! Services that give credentials, each new ones with every request.

use std::time::Instant;

use super::{Answer, Request, State};

/// What a service of credentials answers; `None`: the request is for none.
pub(super) fn answer(state: &mut State, request: &Request) -> Option<Answer> {
    let field = |name: &str| request.fields.get(name).map(String::as_str);
    let path = request.path.as_str();
    let of_instance = "/latest/meta-data/iam/security-credentials/";
    let given = match path {
        "/container" => container(state),
        "/latest/api/token" if request.method == "PUT" => "token-of-instance".to_owned(),
        _ if path.starts_with(of_instance)
            && field("x-aws-ec2-metadata-token") != Some("token-of-instance") =>
        {
            return Some((401, Vec::new(), Vec::new()));
        }
        _ if path == of_instance => "role".to_owned(),
        _ if path.starts_with(of_instance) => container(state),
        "/federation/credentials" if field("x-amz-sso_bearer_token") == Some("sso-token") => sso(state),
        "/" if request.query.get("Action").is_some_and(|action| action == "AssumeRole") => {
            role(state, request)?
        }
        "/" if request.method == "POST" => web_identity(state, request)?,
        _ if path.starts_with("/computeMetadata/v1/") && field("metadata-flavor") == Some("Google") => {
            let (number, seconds) = next(state);
            format!(
                "{{\"access_token\":\"TOKEN-{number}\",\"expires_in\":{seconds},\"token_type\":\"Bearer\"}}"
            )
        }
        "/metadata/identity/oauth2/token" if field("metadata") == Some("true") => {
            let (number, seconds) = next(state);
            let ends = now_s() + seconds;
            format!("{{\"access_token\":\"TOKEN-{number}\",\"expires_on\":\"{ends}\"}}")
        }
        _ => return None,
    };
    state.requests.push((format!("{} {path}", request.method), String::new()));
    Some((200, Vec::new(), given.into_bytes()))
}

fn next(state: &mut State) -> (u64, u64) {
    state.given.push(Instant::now());
    (state.given.len() as u64, state.lifetime_s)
}

fn container(state: &mut State) -> String {
    let (number, seconds) = next(state);
    let ends = date(now_s() + seconds);
    format!(
        "{{\"Code\":\"Success\",\"AccessKeyId\":\"KEY-{number}\",\"SecretAccessKey\":\"hush\",\"Token\":\"quiet\",\"Expiration\":\"{ends}\"}}"
    )
}

fn sso(state: &mut State) -> String {
    let (number, seconds) = next(state);
    let ends = (now_s() + seconds) * 1000;
    format!(
        "{{\"roleCredentials\":{{\"accessKeyId\":\"KEY-{number}\",\"secretAccessKey\":\"hush\",\"sessionToken\":\"quiet\",\"expiration\":{ends}}}}}"
    )
}

fn web_identity(state: &mut State, request: &Request) -> Option<String> {
    let body = String::from_utf8_lossy(&request.body);
    if !body.contains("Action=AssumeRoleWithWebIdentity") || !body.contains("WebIdentityToken=cluster-token")
    {
        return None;
    }
    let (number, seconds) = next(state);
    let ends = date(now_s() + seconds);
    Some(format!(
        "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>KEY-{number}</AccessKeyId>\
         <SecretAccessKey>hush</SecretAccessKey><SessionToken>quiet</SessionToken><Expiration>{ends}</Expiration></Credentials>\
         </AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
    ))
}

/// A role. Its key has the signer's, the region and the external ID.
fn role(state: &mut State, request: &Request) -> Option<String> {
    let (_, signed) = request.fields.get("authorization")?.split_once("Credential=")?;
    let (key, scope) = signed.split_once('/')?;
    let mut scope = scope.split('/').skip(1);
    let (region, "sts") = (scope.next()?, scope.next()?) else { return None };
    let external = request.query.get("ExternalId").map_or("", String::as_str);
    let (number, seconds) = next(state);
    let ends = date(now_s() + seconds);
    let key = format!("ROLE{number}BY{key}IN{region}FOR{external}").replace('-', "").to_uppercase();
    Some(format!(
        "<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>{key}</AccessKeyId>\
         <SecretAccessKey>hush</SecretAccessKey><SessionToken>quiet</SessionToken><Expiration>{ends}</Expiration></Credentials>\
         </AssumeRoleResult></AssumeRoleResponse>"
    ))
}

fn now_s() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.expect("a clock after 1970").as_secs()
}

/// A time as `2013-05-24T00:00:00Z`.
fn date(seconds: u64) -> String {
    let (mut days, second) = (seconds / 86_400, seconds % 86_400);
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let day = days + 1;
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}
