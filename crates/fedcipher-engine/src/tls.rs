//! A party's certificate, key and authority on disk, and its TLS settings. Only version 1.3 with the hybrid group
//! X25519MLKEM768 is accepted, so that a later quantum computer cannot decrypt recorded connections.

use crate::{Error, Result, files};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, cipher_suite, kx_group};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use tonic::transport::{Certificate, ClientTlsConfig, Identity, ServerTlsConfig};
use x509_parser::pem::parse_x509_pem;
use x509_parser::time::ASN1Time;

/// Files of a party's folder, as `fedcipher-authority enrol` writes them.
pub const AUTHORITY_FILE: &str = "authority.pem";
pub const CERTIFICATE_FILE: &str = "certificate.pem";
pub const KEY_FILE: &str = "key.pem";

/// The TLS settings of both sides. The suites determine the version: these exist in TLS 1.3 only.
fn provider() -> CryptoProvider {
    CryptoProvider {
        cipher_suites: vec![
            cipher_suite::TLS13_AES_256_GCM_SHA384,
            cipher_suite::TLS13_AES_128_GCM_SHA256,
            cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        kx_groups: vec![kx_group::X25519MLKEM768],
        ..aws_lc_rs::default_provider()
    }
}

/// tonic takes the process-wide provider, so this installs ours.
fn install() -> Result<()> {
    static OURS: OnceLock<bool> = OnceLock::new();
    if *OURS.get_or_init(|| provider().install_default().is_ok()) {
        return Ok(());
    }
    Err(Error::Configuration("this process has another TLS provider, which may speak less than TLS 1.3".into()))
}

/// A folder with `authority.pem`, `certificate.pem` and `key.pem`.
#[derive(Debug, Clone)]
pub struct Credentials {
    folder: PathBuf,
}

impl Credentials {
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Credentials { folder: folder.to_owned() }
    }

    fn read(&self, file: &str) -> Result<Vec<u8>> {
        files::read_trusted(&self.folder.join(file))
    }

    /// The party's own certificate, PEM.
    pub fn certificate(&self) -> Result<Vec<u8>> {
        self.read(CERTIFICATE_FILE)
    }

    /// Fails early if the certificate is out of date: the other side's reason often gets lost in TLS.
    fn identity(&self) -> Result<Identity> {
        let certificate = self.certificate()?;
        let path = self.folder.join(CERTIFICATE_FILE);
        let (_, pem) = parse_x509_pem(&certificate).map_err(|e| Error::file(&path, &e))?;
        let validity = pem.parse_x509().map_err(|e| Error::file(&path, &e))?.validity().clone();
        if !validity.is_valid() {
            let (from, to, now) = (validity.not_before, validity.not_after, ASN1Time::now());
            let what = if now < from { "is not valid yet" } else { "has expired" };
            return Err(Error::Access(format!(
                "{} {what}: it holds from {from} to {to} and this clock says {now}; check the clocks, or enrol again",
                path.display()
            )));
        }
        Ok(Identity::from_pem(certificate, files::read_secret(&self.folder.join(KEY_FILE))?))
    }

    /// For a client that shows its certificate; the server's must name `domain`.
    pub fn client(&self, domain: &str) -> Result<ClientTlsConfig> {
        install()?;
        let authority = Certificate::from_pem(self.read(AUTHORITY_FILE)?);
        Ok(ClientTlsConfig::new().ca_certificate(authority).identity(self.identity()?).domain_name(domain))
    }

    /// For a server that asks every client for a certificate of this authority.
    pub fn server(&self) -> Result<ServerTlsConfig> {
        install()?;
        let authority = Certificate::from_pem(self.read(AUTHORITY_FILE)?);
        Ok(ServerTlsConfig::new().identity(self.identity()?).client_ca_root(authority))
    }
}
