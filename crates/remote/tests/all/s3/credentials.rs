//! Where credentials come from, and that they are renewed.

use black_box::{Cloud, FakeCloud};
use memory::IoBytes;
use remote::s3::{Present, StoreError};

use crate::s3::{run, store};

/// The credentials that one request was signed with, and the error that there was.
fn signed_with(
    cloud: Cloud,
    fake: &FakeCloud,
    variables: Vec<(&'static str, String)>,
) -> Result<String, String> {
    let store = store(cloud, fake, variables);
    let put = run(store.put("x", IoBytes::copy_from(b"7"), &Present::Replace));
    let by = |(line, by): &(String, String)| line.starts_with("PUT /").then(|| by.clone());
    let requests = fake.requests();
    let signed = requests.iter().filter(|(line, _)| line.ends_with("images/x")).find_map(by);
    put.map(|()| signed.unwrap()).map_err(|error| error.to_string())
}

fn file(directory: &tempfile::TempDir, name: &str, text: &str) -> String {
    let path = directory.path().join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn each_place_of_aws_gives_credentials() {
    let fake = FakeCloud::start(Cloud::Amazon, 3600);
    let home = tempfile::tempdir().unwrap();
    let token = file(&home, "token", "cluster-token\n");
    // The name is SHA-1 of `work`.
    let login = "{\"accessToken\":\"sso-token\",\"expiresAt\":\"2999-01-01T00:00:00Z\"}";
    file(&home, ".aws/sso/cache/e274eeff768c6396088ec6eb091f4bf4d47ab1e0.json", login);
    let program = file(
        &home,
        "program",
        "#!/bin/sh\necho '{\"Version\":1,\"AccessKeyId\":\"OF-PROGRAM\",\"SecretAccessKey\":\"hush\"}'\n",
    );
    std::process::Command::new("chmod").args(["+x", &program]).status().unwrap();
    file(&home, ".aws/credentials", "[keys]\naws_access_key_id = OF-FILE\naws_secret_access_key = hush\n");
    let config = format!(
        "[profile program]\ncredential_process = {program} a b\n[profile sso]\nsso_session = work\nsso_account_id = 1\nsso_role_name = r\n\
         [sso-session work]\nsso_region = eu-north-1\nsso_start_url = https://start\n"
    );
    file(&home, ".aws/config", &config);
    let at_home = || ("HOME", home.path().to_str().unwrap().to_owned());
    let with = |more: &[(&'static str, &str)]| {
        let more = more.iter().map(|(name, value)| (*name, (*value).to_owned()));
        signed_with(Cloud::Amazon, &fake, std::iter::once(at_home()).chain(more).collect())
    };
    let keys = [("AWS_ACCESS_KEY_ID", "OF-ENVIRONMENT"), ("AWS_SECRET_ACCESS_KEY", "hush")];
    assert_eq!(with(&keys), Ok("OF-ENVIRONMENT".to_owned()));
    assert_eq!(with(&[("AWS_PROFILE", "keys")]), Ok("OF-FILE".to_owned()));
    assert_eq!(with(&[("AWS_PROFILE", "program")]), Ok("OF-PROGRAM".to_owned()));
    let url = fake.url();
    assert_eq!(with(&[("AWS_PROFILE", "sso"), ("AWS_ENDPOINT_URL_SSO", &url)]), Ok("KEY-1".to_owned()));
    let role =
        [("AWS_ROLE_ARN", "arn:x"), ("AWS_WEB_IDENTITY_TOKEN_FILE", &token), ("AWS_ENDPOINT_URL_STS", &url)];
    assert_eq!(with(&role), Ok("KEY-2".to_owned()));
    let container = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", &*format!("{url}/container"));
    assert_eq!(with(&[container]), Ok("KEY-3".to_owned()));
    assert_eq!(with(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &url)]), Ok("KEY-4".to_owned()));
    assert!(remote::s3::files_read().iter().any(|path| path.ends_with("token")));
}

/// Profiles that name a role, in a home of their own, and the credentials that one of them signs with.
fn with_role(fake: &FakeCloud, profile: &str, more: &[(&'static str, String)]) -> Result<String, String> {
    let home = tempfile::tempdir().unwrap();
    let token = file(&home, "token", "cluster-token\n");
    let role = |number: u32| format!("role_arn = arn:aws:iam::12345678901{number}:role/r\n");
    file(
        &home,
        ".aws/credentials",
        "[keys]\naws_access_key_id = OF-FILE\naws_secret_access_key = hush\n\
         [own]\naws_access_key_id = OWN\naws_secret_access_key = hush\n",
    );
    let sections = [
        ("one", format!("{}source_profile = keys\nexternal_id = ours\nregion = eu-north-1\n", role(1))),
        (
            "two",
            format!("{}source_profile = one\nrole_session_name = second\nduration_seconds = 900\n", role(2)),
        ),
        ("own", format!("{}source_profile = own\n", role(1))),
        ("place", format!("{}credential_source = EcsContainer\n", role(1))),
        ("token", format!("{}web_identity_token_file = {token}\n", role(1))),
        ("circle", format!("{}source_profile = other\n", role(1))),
        ("other", format!("{}source_profile = circle\n", role(1))),
        (
            "code",
            format!("{}source_profile = keys\nmfa_serial = arn:aws:iam::123456789012:mfa/me\n", role(1)),
        ),
        ("nothing", role(1)),
        ("both", format!("{}source_profile = keys\ncredential_source = Environment\n", role(1))),
        ("nowhere", format!("{}credential_source = Moon\n", role(1))),
        ("bare", format!("{}source_profile = bare-source\n", role(1))),
    ];
    let config: String = sections.iter().map(|(name, lines)| format!("[profile {name}]\n{lines}")).collect();
    file(&home, ".aws/config", &config);
    let at_home = [
        ("HOME", home.path().to_str().unwrap()),
        ("AWS_PROFILE", profile),
        ("AWS_ENDPOINT_URL_STS", &fake.url()),
    ]
    .map(|(name, value)| (name, value.to_owned()));
    signed_with(Cloud::Amazon, fake, [&at_home, more].concat())
}

#[test]
fn a_profile_with_a_role_signs_with_that_role() {
    let fake = FakeCloud::start(Cloud::Amazon, 3600);
    let with = |profile: &str| with_role(&fake, profile, &[]);
    assert_eq!(with("one"), Ok("ROLE1BYOFFILEINEUNORTH1FOROURS".to_owned()));
    // The role of a role.
    assert_eq!(with("two"), Ok("ROLE3BYROLE2BYOFFILEINEUNORTH1FOROURSINUSEAST1FOR".to_owned()));
    assert_eq!(with("own"), Ok("ROLE4BYOWNINUSEAST1FOR".to_owned()));
    let container = [("AWS_CONTAINER_CREDENTIALS_FULL_URI", format!("{}/container", fake.url()))];
    assert_eq!(with_role(&fake, "place", &container), Ok("ROLE6BYKEY5INUSEAST1FOR".to_owned()));
    assert_eq!(with("token"), Ok("KEY-7".to_owned()));
}

#[test]
fn a_role_that_cannot_be_assumed_is_an_error_with_its_profile() {
    let fake = FakeCloud::start(Cloud::Amazon, 3600);
    for (profile, said) in [
        ("circle", "source_profile leads through circle, other"),
        ("code", "profile \"code\": mfa_serial asks for a code"),
        ("nothing", "none of source_profile, credential_source and web_identity_token_file"),
        ("both", "it has source_profile and credential_source; allowed: one"),
        ("nowhere", "credential_source is Moon; allowed: Environment, Ec2InstanceMetadata, EcsContainer"),
        ("bare", "profile \"bare\" has source_profile = bare-source, and that has no keys"),
    ] {
        let error = with_role(&fake, profile, &[]).unwrap_err();
        assert!(error.contains(said) && !error.contains("hush"), "{error}");
    }
    assert_eq!(fake.requests(), []);
}

/// A place that is named and has no credentials ends the search: others are not meant.
#[test]
fn a_named_place_without_credentials_is_an_error_with_its_name_and_no_secret() {
    let fake = FakeCloud::start(Cloud::Amazon, 3600);
    let url = fake.url();
    let metadata = ("AWS_EC2_METADATA_SERVICE_ENDPOINT", url.as_str());
    for (variables, said) in [
        (
            vec![metadata, ("AWS_ACCESS_KEY_ID", "A")],
            "AWS_ACCESS_KEY_ID is given and AWS_SECRET_ACCESS_KEY is not",
        ),
        (
            vec![metadata, ("AWS_SECRET_ACCESS_KEY", "hush")],
            "AWS_SECRET_ACCESS_KEY is given and AWS_ACCESS_KEY_ID is not",
        ),
        (vec![metadata, ("AWS_PROFILE", "none"), ("HOME", "/nonexistent")], "there is no profile \"none\""),
        (
            vec![metadata, ("AWS_ROLE_ARN", "arn:x"), ("AWS_WEB_IDENTITY_TOKEN_FILE", "/nonexistent/token")],
            "/nonexistent/token: No such file",
        ),
        (
            vec![metadata, ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/x")],
            "the container's credentials: failed to fetch ECS credentials",
        ),
    ] {
        let variables = variables.into_iter().map(|(name, value)| (name, value.to_owned())).collect();
        let error = signed_with(Cloud::Amazon, &fake, variables).unwrap_err();
        assert!(error.contains(said) && !error.contains("hush"), "{error}");
    }
    assert_eq!(fake.requests(), []);
}

/// A disk that stays open longer than its credentials got errors from then on.
#[test]
fn credentials_that_end_are_renewed_and_kept_while_they_are_good() {
    for (cloud, by) in [(Cloud::Amazon, "KEY-"), (Cloud::Google, "TOKEN-"), (Cloud::Azure, "TOKEN-")] {
        for (lifetime_s, last) in [(24, "5"), (3600, "1")] {
            let fake = FakeCloud::start(cloud, lifetime_s);
            let store = store(cloud, &fake, fake.variables());
            run(async {
                for _ in 0..5 {
                    // The services take no credentials that end within 20 s.
                    store.put("x", IoBytes::copy_from(b"7"), &Present::Replace).await.unwrap();
                }
            });
            let requests = fake.requests();
            let signed = requests.iter().filter(|(line, _)| line.ends_with("images/x"));
            let signed: Vec<&str> = signed.map(|(_, by)| by.as_str()).collect();
            assert_eq!(signed.last(), Some(&&*format!("{by}{last}")), "{cloud:?} {lifetime_s}: {requests:?}");
        }
    }
}

#[test]
fn fixed_credentials_of_azure_are_a_key_or_a_signature_in_the_url() {
    let fake = FakeCloud::start(Cloud::Azure, 3600);
    let account = || ("AZURE_STORAGE_ACCOUNT", "me".to_owned());
    let of_key = vec![account(), ("AZURE_STORAGE_KEY", "aHVzaA==".to_owned())];
    assert_eq!(signed_with(Cloud::Azure, &fake, of_key), Ok("me".to_owned()));
    let of_token = vec![account(), ("AZURE_STORAGE_SAS_TOKEN", "?sv=2021-12-02&sig=quiet%2B".to_owned())];
    let store = store(Cloud::Azure, &fake, of_token);
    run(store.put("y", IoBytes::copy_from(b"7"), &Present::Replace)).unwrap();
    assert_eq!(fake.requests().last().unwrap().1, "quiet+");
    // The store's own words for a refusal, and no signature.
    let error: StoreError = run(store.get("y", 0)).unwrap_err();
    assert!(!error.to_string().contains("quiet"), "{error}");
}
