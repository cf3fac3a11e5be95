//! Every size, offset and number of this module, compared with what the C compiler makes of the installed header.

use std::fmt::Write as _;
use std::process::Command;

use super::constants;
use super::structs::*;

/// What is compared: a C expression of an integer, and its value here.
type Compared = (String, i64);

/// The offsets and lengths of these fields; where C calls one otherwise its name there stands behind `as`.
macro_rules! fields {
    ($of:ident: $($field:ident $(as $c:literal)?),+) => {{
        let c = concat!("struct ", stringify!($of)).replace("struct ibv_gid", "union ibv_gid");
        let c = c.replace("union ibv_gid_entry", "struct ibv_gid_entry");
        let mut all: Vec<Compared> = Vec::new();
        $(
            let name = [stringify!($field), $($c)?];
            let name = name.last().unwrap();
            all.push((format!("offsetof({c}, {name})"), core::mem::offset_of!($of, $field) as i64));
            let length = length_of(|it: &$of| &it.$field);
            all.push((format!("sizeof((({c} *)0)->{name})"), length as i64));
        )+
        all
    }};
}

/// Length of what a function leads to.
const fn length_of<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// A structure that this crate makes, so that its length counts as well.
macro_rules! whole {
    ($of:ident: $($rest:tt)+) => {{
        let mut all = fields!($of: $($rest)+);
        let c = if stringify!($of) == "ibv_gid" { "union" } else { "struct" };
        all.push((format!("sizeof({c} {})", stringify!($of)), size_of::<$of>() as i64));
        all.push((format!("_Alignof({c} {})", stringify!($of)), align_of::<$of>() as i64));
        all
    }};
}

#[allow(clippy::cast_possible_wrap, reason = "all are small")]
fn compared() -> Vec<Compared> {
    let parts = [
        whole!(ibv_device: node_type, transport_type, name, dev_name, dev_path, ibdev_path),
        whole!(ibv_context_ops: poll_cq, req_notify_cq, post_send, post_recv),
        fields!(ibv_context: device, ops, cmd_fd, async_fd, num_comp_vectors),
        fields!(ibv_pd: context, handle),
        fields!(ibv_mr: context, pd, addr, length, handle, lkey, rkey),
        fields!(ibv_comp_channel: context, fd, refcnt),
        fields!(ibv_cq: context, channel, cq_context, handle, cqe),
        fields!(ibv_qp: context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type),
        whole!(ibv_device_attr: fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id,
            vendor_part_id, hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe,
            max_mr, max_pd, max_pkeys, local_ca_ack_delay, phys_port_cnt),
        whole!(ibv_port_attr: state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr,
            qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply,
            active_width, active_speed, phys_state, link_layer, flags, port_cap_flags2),
        whole!(ibv_gid: raw),
        whole!(ibv_gid_entry: gid, gid_index, port_num, gid_type, ndev_ifindex),
        whole!(ibv_wc: wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index,
            slid, sl, dlid_path_bits),
        whole!(ibv_sge: addr, length, lkey),
        whole!(ibv_send_wr: wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, rdma as "wr"),
        whole!(ibv_recv_wr: wr_id, next, sg_list, num_sge),
        whole!(ibv_global_route: dgid, flow_label, sgid_index, hop_limit, traffic_class),
        whole!(ibv_ah_attr: grh, dlid, sl, src_path_bits, static_rate, is_global, port_num),
        whole!(ibv_qp_cap: max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data),
        whole!(ibv_qp_init_attr: qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all),
        whole!(ibv_qp_attr: qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
            qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining,
            max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num,
            alt_timeout, rate_limit),
        whole!(ibv_async_event: element, event_type),
    ];
    let mut all: Vec<_> = parts.into_iter().flatten().collect();
    let at = core::mem::offset_of!(ibv_send_wr, rdma);
    for (field, offset) in [
        ("remote_addr", core::mem::offset_of!(rdma, remote_addr)),
        ("rkey", core::mem::offset_of!(rdma, rkey)),
    ] {
        all.push((format!("offsetof(struct ibv_send_wr, wr.rdma.{field})"), (at + offset) as i64));
    }
    all.push(("IBV_SYSFS_NAME_MAX".to_owned(), NAME_MAX as i64));
    all.push(("IBV_SYSFS_PATH_MAX".to_owned(), PATH_MAX as i64));
    all.extend(constants::ALL.iter().map(|(name, value)| ((*name).to_owned(), *value)));
    all
}

/// What C says to each of these, in their order.
fn as_c_has_them(all: &[Compared]) -> Vec<i64> {
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("layout.c"), dir.path().join("layout"));
    let mut text = "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n\
                    int main(void) {\n"
        .to_owned();
    for (expression, _) in all {
        writeln!(text, "    printf(\"%lld\\n\", (long long)({expression}));").unwrap();
    }
    std::fs::write(&source, text + "    return 0;\n}\n").unwrap();
    let compiled = Command::new("cc").arg("-o").args([&program, &source]).output().unwrap();
    assert!(
        compiled.status.success(),
        "the header of libibverbs-dev is needed (make deps-test):\n{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    let printed = Command::new(&program).output().unwrap();
    String::from_utf8(printed.stdout).unwrap().lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn structures_and_numbers_are_those_of_the_header() {
    let all = compared();
    let c = as_c_has_them(&all);
    assert_eq!(c.len(), all.len());
    let differ: Vec<_> = all.iter().zip(c).filter(|((_, here), c)| here != c).collect();
    assert!(differ.is_empty(), "((expression, here), in C): {differ:#?}");
    // Else a list that has lost its entries would agree.
    assert!(all.len() > 350, "only {} are compared", all.len());
}
