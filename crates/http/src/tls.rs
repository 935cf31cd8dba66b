//! TLS: which authorities a connection trusts, and what its errors mean.

use std::fmt::Display;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Makes a TLS configuration that trusts only the authorities in the PEM file `ca`; without one, this system's. The error says
/// what to do.
pub fn trusting(ca: Option<&Path>) -> Result<Arc<rustls::ClientConfig>, String> {
    match ca {
        Some(ca) => configuration(of_file(ca)?),
        None => {
            let mut roots = rustls::RootCertStore::empty();
            add_own(&mut roots);
            match roots.is_empty() {
                true => Err("this system has no CA certificates; install ca-certificates, or give a PEM file with --ca".into()),
                false => configuration(roots),
            }
        }
    }
}

/// Makes a TLS configuration that trusts the authorities in the PEM file `ca`, and this system's as well: for a server to which another
/// one has sent us.
pub fn trusting_also(ca: Option<&Path>) -> Result<Arc<rustls::ClientConfig>, String> {
    let Some(ca) = ca else {
        return trusting(None);
    };
    let mut roots = of_file(ca)?;
    add_own(&mut roots);
    configuration(roots)
}

/// Adds this system's authorities.
fn add_own(roots: &mut rustls::RootCertStore) {
    let _ = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
}

/// Reads the authorities of a PEM file, which has some.
fn of_file(path: &Path) -> Result<rustls::RootCertStore, String> {
    let mut roots = rustls::RootCertStore::empty();
    let fail = |e: &dyn Display| {
        format!(
            "cannot read certificates from {} ({e}); give a PEM file",
            path.display()
        )
    };
    for certificate in CertificateDer::pem_file_iter(path).map_err(|e| fail(&e))? {
        roots
            .add(certificate.map_err(|e| fail(&e))?)
            .map_err(|e| fail(&e))?;
    }
    match roots.is_empty() {
        true => Err(fail(&"it has none")),
        false => Ok(roots),
    }
}

fn configuration(roots: rustls::RootCertStore) -> Result<Arc<rustls::ClientConfig>, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// Returns what a failed handshake means for a user.
pub(crate) fn reason(error: &io::Error) -> String {
    format!(
        "TLS: {error}; if its certificate is signed by an authority of your own, give that with --ca"
    )
}

/// Returns whether the other side has refused the connection because of the client's certificate, which it may do after the
/// handshake.
pub(crate) fn is_refusal(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>()
            && let Some(inner) = error.get_ref()
            && let Some(rustls::Error::AlertReceived(_)) = inner.downcast_ref()
        {
            return true;
        }
        cause = error.source();
    }
    false
}
