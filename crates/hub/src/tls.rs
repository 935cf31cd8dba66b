//! The hub's certificate: the operator's, or one that the hub makes and that clients verify with its CA file.

use super::{HubError, Tls};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the accept loop and the start message need.
pub(crate) struct Prepared {
    pub config: Arc<rustls::ServerConfig>,
    pub ca_file: Option<PathBuf>,
    pub fingerprint: String,
}

/// Loads the certificate that `tls` names; makes it first if the hub is its own authority.
pub(crate) fn prepare(
    tls: &Tls,
    dir: &Path,
    listen: SocketAddr,
) -> Result<Option<Prepared>, HubError> {
    let (cert, key, ca_file) = match tls {
        Tls::Off => return Ok(None),
        Tls::Files { cert, key } => (cert.clone(), key.clone(), None),
        Tls::SelfSigned { names } => {
            let folder = dir.join("tls");
            let (cert, key, ca) = (
                folder.join("hub.pem"),
                folder.join("hub.key"),
                folder.join("ca.pem"),
            );
            // The key is written last: if it exists, so do the other files.
            if !is_whole(&folder, &cert, &key)? {
                make(&folder, &subject_names(names, listen))?;
            }
            (cert, key, Some(ca))
        }
    };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(&cert)
        .and_then(|certs| certs.collect())
        .map_err(|e| {
            HubError::Tls(format!(
                "cannot read certificates from {}: {e}; it must be PEM",
                cert.display()
            ))
        })?;
    let leaf = chain.first().ok_or_else(|| {
        HubError::Tls(format!(
            "{} holds no certificate; it must be PEM",
            cert.display()
        ))
    })?;
    let fingerprint = fingerprint(leaf);
    let private = PrivateKeyDer::from_pem_file(&key).map_err(|e| {
        HubError::Tls(format!(
            "cannot read a private key from {}: {e}; it must be PEM",
            key.display()
        ))
    })?;
    let mut config = rustls::ServerConfig::builder_with_provider(Arc::new(
        rustls::crypto::ring::default_provider(),
    ))
    .with_safe_default_protocol_versions()
    .and_then(|builder| {
        builder
            .with_no_client_auth()
            .with_single_cert(chain, private)
    })
    .map_err(|e| {
        HubError::Tls(format!(
            "{} and {} do not fit: {e}",
            cert.display(),
            key.display()
        ))
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Some(Prepared {
        config: Arc::new(config),
        ca_file,
        fingerprint,
    }))
}

/// Returns whether the hub has a certificate of its own. One that is damaged (an empty file after a full disk) is moved away, so that a
/// new one is made: clients then need the new CA file, but the hub works.
fn is_whole(folder: &Path, cert: &Path, key: &Path) -> Result<bool, HubError> {
    let read = |path: &Path| match std::fs::read(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some).map_err(HubError::file("cannot read", path)),
    };
    let Some(key) = read(key)? else {
        return Ok(false);
    };
    let cert = read(cert)?.unwrap_or_default();
    let mut certs = CertificateDer::pem_slice_iter(&cert);
    if certs.next().is_some_and(|first| first.is_ok())
        && certs.all(|cert| cert.is_ok())
        && PrivateKeyDer::from_pem_slice(&key).is_ok()
    {
        return Ok(true);
    }
    let aside = folder.with_extension(format!("damaged-{}", super::catalogue::now_unix_ms()));
    std::fs::rename(folder, &aside)
        .map_err(HubError::file("cannot set aside the damaged", folder))?;
    tracing::error!(
        aside = %aside.display(),
        "the hub's certificate is damaged and was set aside; a new one is made, and clients need the new CA file"
    );
    Ok(false)
}

/// Returns the names that clients on this host and network will use.
fn subject_names(extra: &[String], listen: SocketAddr) -> Vec<String> {
    let mut names = vec![
        "localhost".to_owned(),
        "127.0.0.1".to_owned(),
        "::1".to_owned(),
    ];
    if !listen.ip().is_unspecified() {
        names.push(listen.ip().to_string());
    }
    if let Ok(host) = std::fs::read_to_string("/proc/sys/kernel/hostname")
        && !host.trim().is_empty()
    {
        names.push(host.trim().to_owned());
    }
    names.extend(extra.iter().cloned());
    names.sort();
    names.dedup();
    names
}

/// Makes an authority and a certificate that it signed, not a lone self-signed one: clients keep the CA file when the
/// certificate is renewed, and some verifiers refuse a CA certificate as a server's.
fn make(folder: &Path, names: &[String]) -> Result<(), HubError> {
    let failed =
        |e: rcgen::Error| HubError::Tls(format!("cannot make a certificate for {names:?}: {e}"));
    floe_store::private::make_dirs(folder).map_err(HubError::file("cannot create", folder))?;

    let ca_key = KeyPair::generate().map_err(failed)?;
    let mut ca = CertificateParams::default();
    ca.distinguished_name
        .push(DnType::CommonName, "floe hub CA");
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let ca_cert = ca.self_signed(&ca_key).map_err(failed)?;

    let key = KeyPair::generate().map_err(failed)?;
    let mut leaf = CertificateParams::new(names.to_vec()).map_err(failed)?;
    leaf.distinguished_name.push(DnType::CommonName, "floe hub");
    leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    leaf.use_authority_key_identifier_extension = true;
    let issuer = Issuer::new(ca, ca_key);
    let cert = leaf.signed_by(&key, &issuer).map_err(failed)?;

    write(&folder.join("ca.pem"), &ca_cert.pem(), 0o644)?;
    write(&folder.join("hub.pem"), &cert.pem(), 0o644)?;
    write(&folder.join("hub.key"), &key.serialize_pem(), 0o600)
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), HubError> {
    let partial = path.with_extension("partial");
    let write = || {
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(mode)
            .open(&partial)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&partial, path)?;
        path.parent().map_or(Ok(()), super::disk::sync_folder)
    };
    write().map_err(HubError::file("cannot write", path))
}

/// Returns the SHA-256 fingerprint in hexadecimal with colons, as browsers and `openssl x509 -fingerprint -sha256`
/// show it.
fn fingerprint(cert: &CertificateDer<'_>) -> String {
    let suite = rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
    let hash = suite
        .tls13()
        .expect("a TLS 1.3 suite has a hash")
        .common
        .hash_provider
        .hash(cert);
    hash.as_ref()
        .iter()
        .map(|byte| format!("{byte:02X}"))
        .collect::<Vec<_>>()
        .join(":")
}
