//! Certificates: the parties that they name, and their creation. There is one authority, names are short, and the role
//! is in a URI.

use crate::text::quoted;
use crate::{Error, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use std::collections::BTreeSet;
use std::net::IpAddr;
use time::{Duration, OffsetDateTime};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

const SCHEME: &str = "urn:fedcipher:";
/// The URI type of a device that a host may use. It stands where other certificates have a role.
const USES: &str = "uses";
/// The largest number of devices of one host: TLS limits certificates to 64 KiB.
pub const MAX_DEVICES: usize = 256;
/// The time by which a party's clock may lag behind the authority's.
const BACKDATE: Duration = Duration::hours(1);
const CA_DAYS: i64 = 3650;
/// The longest validity of a certificate.
const MAX_DAYS: i64 = 36_500;
/// The years in which a certificate may begin: all readers accept these.
const YEARS: std::ops::RangeInclusive<i32> = 1970..=9000;

/// The role of a party.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Role {
    /// An engine: receives its own key of each epoch.
    Device,
    /// A training host: may use the devices that its certificate names, on engines that list it.
    Host,
    /// The aggregator: receives public keys, finishes epochs.
    Server,
    /// The authority's own service.
    Authority,
}

impl Role {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Role::Device => "device",
            Role::Host => "host",
            Role::Server => "server",
            Role::Authority => "authority",
        }
    }

    /// Whether other parties connect to this one.
    #[must_use]
    pub fn is_reached(self) -> bool {
        matches!(self, Role::Device | Role::Authority)
    }

    pub fn parse(name: &str) -> Result<Self> {
        [Role::Device, Role::Host, Role::Server, Role::Authority]
            .into_iter()
            .find(|role| role.name() == name)
            .ok_or_else(|| Error::Access(format!("unknown role {name:?}")))
    }
}

/// The holder of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    pub role: Role,
    pub name: String,
    /// The devices that a host may use.
    pub devices: BTreeSet<String>,
}

impl Subject {
    /// A party that uses no devices.
    #[must_use]
    pub fn new(role: Role, name: &str) -> Self {
        Subject { role, name: name.to_owned(), devices: BTreeSet::new() }
    }

    /// Fails if a host names no devices or too many, or if another party names any.
    fn check(&self) -> Result<()> {
        check_name(&self.name)?;
        self.devices.iter().try_for_each(|device| check_name(device))?;
        match (self.role, self.devices.len()) {
            (Role::Host, 0) => Err(Error::Configuration(
                "a host uses only the devices that its certificate names: give --device NAME for each".into(),
            )),
            (Role::Host, count) if count > MAX_DEVICES => {
                Err(Error::Configuration(format!("a host of {count} devices; the most is {MAX_DEVICES}")))
            }
            (Role::Host, _) | (_, 0) => Ok(()),
            (role, _) => {
                Err(Error::Configuration(format!("a {} uses no devices, a host does; leave out --device", role.name())))
            }
        }
    }
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.role.name(), self.name)
    }
}

/// Letters, digits, dot, dash and underscore: names go into files, URIs and logs.
pub fn check_name(name: &str) -> Result<()> {
    let fine = |b: u8| b.is_ascii_alphanumeric() || b".-_".contains(&b);
    if (1..=64).contains(&name.len()) && name.bytes().all(fine) && !name.starts_with(['.', '-']) {
        return Ok(());
    }
    Err(Error::Configuration(format!(
        "{name:?} is not a valid name: use 1 to 64 letters, digits, dots, dashes, underscores"
    )))
}

/// The holder of a verified certificate.
pub fn subject(der: &[u8]) -> Result<Subject> {
    let bad = |reason: &str| Error::Access(format!("the certificate {reason}; use one made by fedcipher-authority"));
    let (_, certificate) = X509Certificate::from_der(der).map_err(|e| bad(&format!("cannot be read ({e})")))?;
    let names = certificate.subject_alternative_name().map_err(|e| bad(&e.to_string()))?;
    let uris = names.iter().flat_map(|n| &n.value.general_names).filter_map(|n| match n {
        GeneralName::URI(uri) => uri.strip_prefix(SCHEME),
        _ => None,
    });
    let (mut found, mut devices) = (None, BTreeSet::new());
    for uri in uris {
        let (what, name) = uri.split_once(':').ok_or_else(|| bad("names no fedcipher party"))?;
        if what == USES {
            devices.insert(name.to_owned());
        } else if found.replace((Role::parse(what)?, name)).is_some() {
            return Err(bad("names more than one fedcipher party"));
        }
    }
    let (role, name) = found.ok_or_else(|| bad("names no fedcipher party"))?;
    let subject = Subject { role, name: name.to_owned(), devices };
    subject.check().map_err(|error| bad(&format!("names what no subject is ({error})")))?;
    Ok(subject)
}

/// The holder of a PEM certificate.
pub fn subject_of_pem(pem: &[u8]) -> Result<Subject> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem)
        .map_err(|e| Error::Access(format!("the certificate is not PEM ({e})")))?;
    subject(&pem.contents)
}

fn failed(error: rcgen::Error) -> Error {
    Error::Configuration(format!("certificate: {error}"))
}

/// The authority's signing certificate and key, PEM.
pub struct Root {
    pub certificate: String,
    pub key: String,
}

/// The validity of a certificate, and the names under which its service is reached.
#[derive(Debug, Clone)]
pub struct Terms {
    pub from: OffsetDateTime,
    pub days: i64,
    /// The DNS names and addresses of the service.
    pub reached_as: Vec<String>,
}

impl Terms {
    #[must_use]
    pub fn days(days: i64, reached_as: Vec<String>) -> Self {
        Terms { from: OffsetDateTime::now_utc() - BACKDATE, days, reached_as }
    }
}

/// A note about the peers that a certificate for `names` does not serve; `None` if it names more than its own machine.
#[must_use]
pub fn only_local(names: &[String]) -> Option<String> {
    let local = |name: &String| name == "localhost" || name.parse::<IpAddr>().is_ok_and(|a| a.is_loopback());
    names.iter().all(local).then(|| {
        format!(
            "its certificate names {} only: clients on other machines will reject it; give --name HOST for \
             each name or address under which it is reached",
            names.join(", ")
        )
    })
}

impl Root {
    pub fn generate() -> Result<Self> {
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = root_params()?.self_signed(&key).map_err(failed)?;
        Ok(Root { certificate: certificate.pem(), key: key.serialize_pem() })
    }

    fn issuer(&self) -> Result<Issuer<'static, KeyPair>> {
        Ok(Issuer::new(root_params()?, KeyPair::from_pem(&self.key).map_err(failed)?))
    }

    /// A certificate and a new key for it, PEM.
    pub fn issue(&self, subject: &Subject, terms: &Terms) -> Result<(String, String)> {
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = leaf(subject, terms)?.signed_by(&key, &self.issuer()?).map_err(failed)?;
        Ok((certificate.pem(), key.serialize_pem()))
    }

    /// A certificate for the key of a request. Everything else in the request is ignored.
    pub fn sign(&self, request: &str, subject: &Subject, terms: &Terms) -> Result<String> {
        let request = CertificateSigningRequestParams::from_pem(request).map_err(failed)?;
        let certificate = leaf(subject, terms)?.signed_by(&request.public_key, &self.issuer()?).map_err(failed)?;
        Ok(certificate.pem())
    }
}

/// A new key and a certificate request for it, PEM. The key never leaves the device.
pub fn request(name: &str) -> Result<(String, String)> {
    check_name(name)?;
    let key = KeyPair::generate().map_err(failed)?;
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    let request = params.serialize_request(&key).map_err(failed)?;
    Ok((request.pem().map_err(failed)?, key.serialize_pem()))
}

fn root_params() -> Result<CertificateParams> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "Fedcipher authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = OffsetDateTime::now_utc() - BACKDATE;
    params.not_after = params.not_before + Duration::days(CA_DAYS);
    Ok(params)
}

/// Checks the terms of a certificate. Dates out of range would cause a panic elsewhere.
fn check_terms(terms: &Terms) -> Result<()> {
    if !(1..=MAX_DAYS).contains(&terms.days) {
        return Err(Error::Configuration(format!("--days {}: give 1 to {MAX_DAYS}", terms.days)));
    }
    if !YEARS.contains(&terms.from.year()) {
        let (first, last) = (YEARS.start(), YEARS.end());
        return Err(Error::Configuration(format!("--from {}: give a year from {first} to {last}", terms.from)));
    }
    check_reached_as(&terms.reached_as)
}

/// Checks names that other parties can connect to.
fn check_reached_as(names: &[String]) -> Result<()> {
    let known = |name: &&String| name.parse::<IpAddr>().is_ok() || is_host(name);
    match names.iter().find(|name| !known(name)) {
        Some(name) => Err(Error::Configuration(format!(
            "--name {} is neither a DNS name nor an address; give the name of one machine, in full",
            quoted(name)
        ))),
        None => Ok(()),
    }
}

/// Whether `name` is a DNS name (RFC 1123, with underscores) of one machine. A certificate for `*.x` would be valid for
/// all of x.
fn is_host(name: &str) -> bool {
    let fine = |b: u8| b.is_ascii_alphanumeric() || b"-_".contains(&b);
    let label = |label: &str| {
        (1..=63).contains(&label.len()) && label.bytes().all(fine) && !label.starts_with('-') && !label.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(label)
}

fn uri(what: &str, name: &str) -> Result<SanType> {
    Ok(SanType::URI(format!("{SCHEME}{what}:{name}").try_into().map_err(failed)?))
}

fn leaf(subject: &Subject, terms: &Terms) -> Result<CertificateParams> {
    subject.check()?;
    check_terms(terms)?;
    // A party that accepts no connections gets no names, so its certificate cannot impersonate a service.
    let names = if subject.role.is_reached() { terms.reached_as.clone() } else { Vec::new() };
    let mut params = CertificateParams::new(names).map_err(failed)?;
    params.subject_alt_names.push(uri(subject.role.name(), &subject.name)?);
    for device in &subject.devices {
        params.subject_alt_names.push(uri(USES, device)?);
    }
    params.distinguished_name.push(DnType::CommonName, subject.name.as_str());
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    if subject.role.is_reached() {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    params.not_before = terms.from;
    params.not_after = terms.from + Duration::days(terms.days);
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_names_its_party_whatever_the_request_says() {
        let root = Root::generate().unwrap();
        let nic = Subject::new(Role::Device, "nic-1");
        let terms = Terms::days(1, vec!["localhost".into(), "127.0.0.1".into()]);
        let (certificate, _) = root.issue(&nic, &terms).unwrap();
        assert_eq!(subject_of_pem(certificate.as_bytes()).unwrap(), nic);
        let (csr, _) = request("nic-99").unwrap();
        assert_eq!(subject_of_pem(root.sign(&csr, &nic, &terms).unwrap().as_bytes()).unwrap(), nic);
        assert!(root.sign("nonsense", &nic, &terms).is_err());
        assert!(subject_of_pem(root.certificate.as_bytes()).is_err());
        assert!(subject_of_pem(b"nonsense").is_err());
        for name in ["", "a b", "../x", "-x", "a:b"] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_certificate_is_for_names_of_single_machines() {
        let long = vec!["a".repeat(63); 4].join(".");
        for name in ["localhost", "node-1.example.org", "_x.y", "127.0.0.1", "::1", "2001:db8::7", &long[..253]] {
            assert!(check_reached_as(&[name.to_owned()]).is_ok(), "{name}");
        }
        let letters = "a".repeat(10_000);
        for name in ["*.x", "*", "", ".", "a..b", "a.", "-a", "a-", "a b", "ü", &letters, &letters[..64], &long] {
            let said = check_reached_as(&["localhost".to_owned(), name.to_owned()]).unwrap_err().to_string();
            assert!(said.contains("give the name of one machine") && said.len() < 5000, "{said}");
        }
    }

    #[test]
    fn attack_24_a_certificate_names_the_devices_of_a_host_and_of_nobody_else() {
        let root = Root::generate().unwrap();
        let terms = Terms::days(1, vec!["localhost".into()]);
        let read = |subject: &Subject| {
            root.issue(subject, &terms).and_then(|(certificate, _)| subject_of_pem(certificate.as_bytes()))
        };
        let of = |role, devices: &[&str]| Subject {
            devices: devices.iter().map(|device| (*device).to_owned()).collect(),
            ..Subject::new(role, "one")
        };
        for devices in [&["nic-1"][..], &["nic-1", "nic-2", "uses"]] {
            let host = of(Role::Host, devices);
            assert_eq!(read(&host).unwrap(), host);
        }
        let many: Vec<String> = (0..=MAX_DEVICES).map(|k| format!("{k:064}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        read(&of(Role::Host, &many[1..])).unwrap();
        let without =
            [of(Role::Host, &[]), of(Role::Host, &many), of(Role::Device, &["nic-1"]), of(Role::Server, &["a"])];
        for subject in without.iter().chain(["", "a:b", "a b", "../a", "ü", "a\n"].map(|d| of(Role::Host, &[d])).iter())
        {
            assert!(read(subject).is_err(), "{subject:?}");
        }
    }

    /// A certificate signed by the authority's key with content that `leaf` would not write.
    #[test]
    fn attack_24_a_certificate_that_names_a_host_without_devices_or_two_parties_is_refused() {
        let root = Root::generate().unwrap();
        let terms = Terms::days(1, vec![]);
        let signed = |uris: &[&str]| {
            let mut params = leaf(&Subject::new(Role::Server, "one"), &terms).unwrap();
            let name = |uri: &&str| SanType::URI(format!("{SCHEME}{uri}").try_into().unwrap());
            params.subject_alt_names = uris.iter().map(name).collect();
            let key = KeyPair::generate().unwrap();
            subject_of_pem(params.signed_by(&key, &root.issuer().unwrap()).unwrap().pem().as_bytes())
        };
        assert!(signed(&["host:one", "uses:nic-1"]).is_ok());
        for uris in [
            &["host:one"][..],
            &["uses:nic-1"],
            &["host:one", "device:nic-1"],
            &["host:one", "host:two", "uses:nic-1"],
            &["device:one", "uses:nic-1"],
            &["host:one", "uses:"],
            &["host:one", "uses:nic-1:x"],
            &["host:one", "uses"],
        ] {
            assert!(matches!(signed(uris), Err(Error::Access(_))), "{uris:?}");
        }
    }
}
