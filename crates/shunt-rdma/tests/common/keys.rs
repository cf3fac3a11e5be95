//! Keys of two agents.

use shunt_peer::{PublicKey, SecretKey};

pub type Id = (PublicKey, SecretKey);

/// The first one dials the second.
pub fn ids() -> [Id; 2] {
    let mut ids = [(); 2].map(|()| {
        let secret = SecretKey::generate().unwrap();
        (secret.public().unwrap(), secret)
    });
    ids.sort_by_key(|id| id.0);
    ids
}
