//! Calls that change what a machine has.

use super::{Client, ClientError, Events, machine_path};
use crate::*;
use bytes::Bytes;
use floe_http::{Method, escape};

impl Client {
    /// Changes a machine's CPUs and memory.
    pub fn resize(&self, name: &str, request: &SizeRequest) -> Result<Events, ClientError> {
        self.stream(&machine_path(name, "/size"), request)
    }
    /// Makes a machine independent of where its image came from, or gives that up.
    pub fn independent(
        &self,
        name: &str,
        request: &IndependentRequest,
    ) -> Result<Events, ClientError> {
        self.stream(&machine_path(name, "/independent"), request)
    }
    /// Gives a machine another disk under this name.
    pub fn attach_disk(
        &self,
        name: &str,
        disk: &str,
        request: &AttachDiskRequest,
    ) -> Result<Events, ClientError> {
        let path = machine_path(name, &format!("/disks/{}", escape(disk)));
        self.stream(&path, request)
    }
    /// Takes a disk away from a machine, and what is on it with it.
    pub fn detach_disk(&self, name: &str, disk: &str) -> Result<(), ClientError> {
        let path = machine_path(name, &format!("/disks/{}", escape(disk)));
        self.send(Method::DELETE, &path, Bytes::new())?.discard()
    }
    /// Gives a running machine another network card.
    pub fn attach_card(&self, name: &str) -> Result<AttachedCard, ClientError> {
        self.post(&machine_path(name, "/cards"), &AttachRequest {})
    }
    /// Takes a network card away that a machine was given while it ran.
    pub fn detach_card(&self, name: &str, card: &str) -> Result<(), ClientError> {
        let path = machine_path(name, &format!("/cards/{}", escape(card)));
        self.send(Method::DELETE, &path, Bytes::new())?.discard()
    }
}
