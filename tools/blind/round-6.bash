# shellcheck shell=bash
# Round 6: container hosts, Kubernetes nodes, cloud NAT instances, load balancers, and some of
# every other kind. First what several hosts share, then 30 faults, then 20 healthy hosts.

at_provider() { # client 198.51.100.10 – switch wan – 198.51.100.1 wan0 gw, isp 198.51.100.254
  router gw isp
  node client
  switch wan
  plug wan client eth0 198.51.100.10/24
  plug wan gw wan0 198.51.100.1/24
  plug wan isp wan0 198.51.100.254/24
  default gw 198.51.100.254
}
with_lan() { # NODE/ADDRESS… on the switch lan, behind lan0 of gw
  local x
  switch lan
  plug lan gw lan0 192.168.1.1/24
  for x; do
    node "${x%%/*}"
    plug lan "${x%%/*}" eth0 "${x#*/}/24"
    default "${x%%/*}" 192.168.1.1
  done
}
two_uplinks() { # client 192.0.2.10 – isp – wan0 198.51.100.1 and wan1 203.0.113.1 of gw
  router gw isp
  node client
  switch wan wan2
  link isp up0 192.0.2.1/24 client eth0 192.0.2.10/24
  default client 192.0.2.1
  plug wan isp wan0 198.51.100.254/24
  plug wan gw wan0 198.51.100.1/24
  plug wan2 isp wan1 203.0.113.254/24
  plug wan2 gw wan1 203.0.113.1/24
}
docker_host() {
  at_provider
  rules <<'EOF'
-t nat -N DOCKER
-t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-t nat -A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER
-N DOCKER
-N DOCKER-USER
-P FORWARD DROP
-A FORWARD -j DOCKER-USER
-A DOCKER-USER -j RETURN
EOF
}
docker_net() { # BRIDGE ADDRESS/LENGTH
  ip -n gw link add "$1" up type bridge
  address gw "$1" "$2"
  rules <<EOF
-t nat -A POSTROUTING -s $2 ! -o $1 -j MASQUERADE
-A FORWARD -o $1 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o $1 -j DOCKER
-A FORWARD -i $1 ! -o $1 -j ACCEPT
-A FORWARD -i $1 -o $1 -j ACCEPT
EOF
}
run_on() { # BRIDGE NODE ADDRESS/LENGTH: a container; x.x.x.1 is its gateway
  node "$2"
  link gw "v-$2" - "$2" eth0 "$3"
  ip -n gw link set "v-$2" master "$1"
  default "$2" "${3%.*}.1"
}
docker_publish() { # BRIDGE PROTOCOL HOSTPORT ADDRESS PORT
  rules <<EOF
-t nat -A DOCKER ! -i $1 -p $2 --dport $3 -j DNAT --to-destination $4:$5
-t nat -A POSTROUTING -s $4/32 -d $4/32 -p $2 --dport $5 -j MASQUERADE
-A DOCKER -d $4/32 ! -i $1 -o $1 -p $2 --dport $5 -j ACCEPT
EOF
}
kube_rules() { # kube-proxy's frame, and flannel's rules
  rules <<'EOF'
-t nat -N KUBE-SERVICES
-t nat -N KUBE-NODEPORTS
-t nat -N KUBE-POSTROUTING
-t nat -N KUBE-MARK-MASQ
-t nat -A PREROUTING -j KUBE-SERVICES
-t nat -A OUTPUT -j KUBE-SERVICES
-t nat -A POSTROUTING -j KUBE-POSTROUTING
-t nat -A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-t nat -A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-t nat -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-t nat -A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-t nat -A KUBE-POSTROUTING -j MASQUERADE --random-fully
-t nat -A POSTROUTING -s 10.244.0.0/16 -d 10.244.0.0/16 -j RETURN
-t nat -A POSTROUTING -s 10.244.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE --random-fully
-N KUBE-FORWARD
-A FORWARD -j KUBE-FORWARD
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -s 10.244.0.0/16 -j ACCEPT
-A FORWARD -d 10.244.0.0/16 -j ACCEPT
EOF
}
kube_node() {
  at_provider
  ip -n gw link add cni0 up type bridge
  address gw cni0 10.244.0.1/24
  kube_rules
}
kube_service() { # NAME PROTOCOL CLUSTERIP PORT NODEPORT|- ENDPOINT:PORT…
  local name=$1 proto=$2 vip=$3 port=$4 node=$5 odds
  shift 5
  rules <<EOF
-t nat -N KUBE-SVC-$name
-t nat -I KUBE-SERVICES -d $vip/32 -p $proto --dport $port -j KUBE-SVC-$name
-t nat -A KUBE-SVC-$name ! -s 10.244.0.0/16 -d $vip/32 -p $proto --dport $port -j KUBE-MARK-MASQ
EOF
  [ "$node" = - ] || rules <<EOF
-t nat -N KUBE-EXT-$name
-t nat -A KUBE-EXT-$name -j KUBE-MARK-MASQ
-t nat -A KUBE-EXT-$name -j KUBE-SVC-$name
-t nat -A KUBE-NODEPORTS -p $proto --dport $node -j KUBE-EXT-$name
EOF
  while [ $# -gt 0 ]; do
    odds=
    [ $# = 1 ] || odds="-m statistic --mode random --probability 0.$((1000000 / $#))"
    rules <<EOF
-t nat -N KUBE-SEP-$name-$#
-t nat -A KUBE-SEP-$name-$# -s ${1%:*}/32 -j KUBE-MARK-MASQ
-t nat -A KUBE-SEP-$name-$# -p $proto -j DNAT --to-destination $1
-t nat -A KUBE-SVC-$name $odds -j KUBE-SEP-$name-$#
EOF
    shift
  done
}
flannel_at() { # NODE NUMBER ADDRESS: its end of the overlay
  ip -n "$1" link add flannel.1 address "02:00:00:00:0$2:00" mtu 1450 type vxlan id 1 local "$3" dstport 8472 nolearning
  address "$1" flannel.1 "10.244.$2.0/32"
}
flannel_to() { # NODE NUMBER ADDRESS: another node, as flanneld writes it
  ip -n "$1" neigh add "10.244.$2.0" lladdr "02:00:00:00:0$2:00" dev flannel.1 nud permanent
  bridge -n "$1" fdb append "02:00:00:00:0$2:00" dev flannel.1 dst "$3"
  ip -n "$1" route add "10.244.$2.0/24" via "10.244.$2.0" dev flannel.1 onlink
}
far_pod() { # NODE NUMBER POD MTU: NODE's pod 10.244.NUMBER.10
  node "$3"
  link "$1" pod0 "10.244.$2.1/24" "$3" eth0 "10.244.$2.10/24"
  ip -n "$1" link set pod0 mtu "$4"
  ip -n "$3" link set eth0 mtu "$4"
  default "$3" "10.244.$2.1"
}
site_tunnel() { # gw – vxlan over wan – site2 198.51.100.30 – erp 10.20.0.10; site2 lets 192.168.1.0/24 in
  router site2
  node erp
  plug wan site2 wan0 198.51.100.30/24
  link site2 lan0 10.20.0.1/24 erp eth0 10.20.0.10/24
  default erp 10.20.0.1
  ip -n gw link add tun-b mtu 1400 type vxlan id 7 local 198.51.100.1 remote 198.51.100.30 dstport 4789
  ip -n site2 link add tun-a mtu 1400 type vxlan id 7 local 198.51.100.30 remote 198.51.100.1 dstport 4789
  address gw tun-b 169.254.7.1/30
  address site2 tun-a 169.254.7.2/30
  ip -n gw route add 10.20.0.0/24 via 169.254.7.2
  ip -n site2 route add 192.168.1.0/24 via 169.254.7.1
  on site2 iptables -w -A FORWARD -i tun-a ! -s 192.168.1.0/24 -j DROP
}

# ---- faults ----

wiki-dead-from-headquarters() {
  fault "from headquarters (172.20.5.0/24) the wiki times out; from elsewhere it works" "a newer docker network, br-c41f09 with 172.20.0.0/16, overlaps headquarters: the wiki's answers to 172.20.5.x are routed into that bridge, where nobody has the address"
  docker_host
  docker_net br-a07711 172.18.0.1/16
  docker_net br-c41f09 172.20.0.1/16
  run_on br-a07711 wiki 172.18.0.2/16
  run_on br-c41f09 builder 172.20.0.2/16
  docker_publish br-a07711 tcp 80 172.18.0.2 8080
  node hq
  link isp hq0 172.20.5.1/24 hq eth0 172.20.5.20/24
  default hq 172.20.5.1
  serve tcp wiki 8080
  serve tcp client 443
  ask client tcp 198.51.100.1 80 4
  ask hq tcp 198.51.100.1 80 5
  ask builder tcp 198.51.100.10 443 1
}

pods-offline-after-os-upgrade() {
  fault "pods reach nothing outside the node, and the NodePort is dead; what the node itself asks works" "the upgrade went from iptables-legacy to iptables-nft: the legacy filter table is still loaded, with docker's FORWARD policy DROP and accepts for docker0 only"
  kube_node
  run_on cni0 web 10.244.0.11/24
  run_on cni0 cron 10.244.0.12/24
  kube_service WEB tcp 10.96.12.7 80 30080 10.244.0.11:8080
  gw iptables-legacy-restore <<'EOF'
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i docker0 -j ACCEPT
COMMIT
EOF
  serve tcp web 8080
  serve tcp client 443
  ask client tcp 198.51.100.1 30080 5
  ask cron tcp 198.51.100.10 443 4
  ask gw tcp 10.96.12.7 80 2
}

webhooks-not-sent() {
  fault "the app in its container cannot call anything outside (webhooks, updates); partners reach the app" "DOCKER-USER drops all that comes in by wan0 and is not from the partner network 203.0.113.0/24, so the answers to what containers ask too: no ESTABLISHED before it"
  docker_host
  docker_net docker0 172.17.0.1/16
  run_on docker0 app 172.17.0.2/16
  docker_publish docker0 tcp 8443 172.17.0.2 443
  node partner
  link isp p0 203.0.113.1/24 partner eth0 203.0.113.7/24
  default partner 203.0.113.1
  gw iptables -w -I DOCKER-USER -i wan0 ! -s 203.0.113.0/24 -j DROP
  serve tcp app 443
  serve tcp client 443
  ask partner tcp 198.51.100.1 8443 3
  ask app tcp 198.51.100.10 443 6
}

reports-hang-at-download() {
  fault "pages of the app open, larger downloads hang at once" "wan0 has MTU 1400, the containers 1500; gw's ICMP fragmentation-needed to the container is dropped by its own OUTPUT rule against ICMP, and nothing clamps the MSS"
  docker_host
  docker_net docker0 172.17.0.1/16
  run_on docker0 app 172.17.0.2/16
  docker_publish docker0 tcp 443 172.17.0.2 8443
  ip -n gw link set wan0 mtu 1400
  rules <<'EOF'
-A OUTPUT -p icmp --icmp-type echo-request -j ACCEPT
-A OUTPUT -p icmp --icmp-type echo-reply -j ACCEPT
-A OUTPUT -p icmp -j DROP
EOF
  serve tcp app 8443
  ask client tcp 198.51.100.1 443 4 down=300
  ask client tcp 198.51.100.1 443 5 down=60000
  ask client ping 198.51.100.1 - 1
}

new-dashboard-refused() {
  fault "the new dashboard on port 3001: connection refused; the shop on 443 works" "published to port 80 of the container, which listens on 3000: the container answers with RST"
  docker_host
  docker_net docker0 172.17.0.1/16
  run_on docker0 shop 172.17.0.2/16
  run_on docker0 grafana 172.17.0.3/16
  docker_publish docker0 tcp 443 172.17.0.2 8443
  docker_publish docker0 tcp 3001 172.17.0.3 80
  serve tcp shop 8443
  serve tcp grafana 3000
  ask client tcp 198.51.100.1 443 5
  ask client tcp 198.51.100.1 3001 2
}

guest-wlan-no-names() {
  fault "guests of the wireless network get no DNS answers; what they reach by address works, and the office uses the same resolver without trouble" "guests' DNS is DNATed to the resolver's container, a macvlan on lan0: gw cannot reach a macvlan over its own parent, ARP for 192.168.1.53 stays unanswered"
  router gw
  with_lan server/192.168.1.10 pc/192.168.1.20
  node guest resolver
  link gw wlan0 10.9.0.1/24 guest eth0 10.9.0.20/24
  default guest 10.9.0.1
  ip -n gw link add link lan0 name eth0 netns resolver type macvlan mode bridge
  address resolver eth0 192.168.1.53/24
  rules <<'EOF'
-t nat -A PREROUTING -i wlan0 -p udp --dport 53 -j DNAT --to-destination 192.168.1.53
-t nat -A PREROUTING -i wlan0 -p tcp --dport 53 -j DNAT --to-destination 192.168.1.53
-t nat -A POSTROUTING -s 10.9.0.0/24 ! -o wlan0 -j MASQUERADE
EOF
  serve udp resolver 53
  serve tcp server 80
  ask pc udp 192.168.1.53 53 3
  ask guest udp 10.9.0.1 53 5
  ask guest tcp 192.168.1.10 80 2
}

one-phone-deaf-since-restart() {
  fault "one phone has been without registration since the PBX container was restarted; other phones work" "the phone keeps sending from the same port, so its old connection entry never ends: it still leads to 172.17.0.2, but the PBX has 172.17.0.3 since the restart"
  docker_host
  docker_net docker0 172.17.0.1/16
  run_on docker0 pbx 172.17.0.2/16
  docker_publish docker0 udp 5060 172.17.0.2 5060
  serve udp pbx 5060
  ask client udp 198.51.100.1 5060 4 port=5060
  sleep 2
  rules <<'EOF'
-t nat -F DOCKER
-t nat -D POSTROUTING -s 172.17.0.2/32 -d 172.17.0.2/32 -p udp --dport 5060 -j MASQUERADE
-F DOCKER
EOF
  ip -n pbx addr flush dev eth0
  address pbx eth0 172.17.0.3/16
  default pbx 172.17.0.1
  docker_publish docker0 udp 5060 172.17.0.3 5060
  ask client udp 198.51.100.1 5060 3
}

pods-cannot-call-each-other() {
  fault "pods of this node reach the orders service not by its service address; from outside, by NodePort, and by pod address it works" "net.bridge.bridge-nf-call-iptables is 0: the endpoint is on the same bridge and answers directly, past conntrack, so that the answer comes from the pod's address"
  kube_node
  run_on cni0 orders 10.244.0.11/24
  run_on cni0 front 10.244.0.12/24
  kube_service ORDERS tcp 10.96.40.2 80 30082 10.244.0.11:8080
  set_ gw net.bridge.bridge-nf-call-iptables=0
  serve tcp orders 8080
  ask front tcp 10.96.40.2 80 5
  ask front tcp 10.244.0.11 8080 2
  ask client tcp 198.51.100.1 30082 3
}

nodeport-half-dead() {
  fault "half of the connections to NodePort 30090 time out" "the storage team's mangle rule sets the whole mark of what leaves by lan0 and so wipes kube-proxy's 0x4000: no masquerade towards the pod on node2, which answers by its own router"
  kube_node
  with_lan
  router node2 r2
  plug lan node2 eth0 192.168.1.12/24
  plug lan r2 lan0 192.168.1.254/24
  plug wan r2 wan0 198.51.100.2/24
  default node2 192.168.1.254
  ip -n r2 route add 10.244.2.0/24 via 192.168.1.12
  ip -n node2 route add 10.244.0.0/24 via 192.168.1.1
  ip -n gw route add 10.244.2.0/24 via 192.168.1.12
  run_on cni0 api1 10.244.0.11/24
  far_pod node2 2 api2 1500
  kube_service API tcp 10.96.3.3 80 30090 10.244.0.11:80 10.244.2.10:80
  gw iptables -w -t mangle -A FORWARD -o lan0 -j MARK --set-mark 0x10
  serve tcp api1 80
  serve tcp api2 80
  ask client tcp 198.51.100.1 30090 8
}

service-flaky-after-node-rebuild() {
  fault "every other call of the search service times out" "its second endpoint is on node3, rebuilt with the address 192.168.1.23: gw's vxlan forwarding entry still sends to 192.168.1.13, which nobody has"
  kube_node
  with_lan
  router node2 node3
  plug lan node2 eth0 192.168.1.12/24
  plug lan node3 eth0 192.168.1.23/24
  flannel_at gw 0 192.168.1.1
  flannel_at node2 2 192.168.1.12
  flannel_at node3 3 192.168.1.23
  flannel_to node2 0 192.168.1.1
  flannel_to node3 0 192.168.1.1
  flannel_to gw 2 192.168.1.12
  flannel_to gw 3 192.168.1.13
  far_pod node2 2 search2 1450
  far_pod node3 3 search3 1450
  run_on cni0 front 10.244.0.12/24
  kube_service SEARCH tcp 10.96.8.8 9200 - 10.244.2.10:9200 10.244.3.10:9200
  serve tcp search2 9200
  serve tcp search3 9200
  ask front tcp 10.96.8.8 9200 8
}

cluster-names-do-not-resolve() {
  fault "pods of this node get no DNS answers; other services work" "NOTRACK rules of a removed node-local DNS cache still exempt 10.96.0.10 port 53 from tracking: the service's DNAT is never consulted, queries leave for the provider"
  kube_node
  run_on cni0 coredns 10.244.0.5/24
  run_on cni0 web 10.244.0.11/24
  run_on cni0 app 10.244.0.12/24
  kube_service DNS udp 10.96.0.10 53 - 10.244.0.5:53
  kube_service DNSTCP tcp 10.96.0.10 53 - 10.244.0.5:53
  kube_service WEB tcp 10.96.12.7 80 - 10.244.0.11:8080
  rules <<'EOF'
-t raw -A PREROUTING -d 10.96.0.10/32 -p udp --dport 53 -j NOTRACK
-t raw -A PREROUTING -d 10.96.0.10/32 -p tcp --dport 53 -j NOTRACK
EOF
  serve udp coredns 53
  serve tcp web 8080
  ask app udp 10.96.0.10 53 10
  ask app tcp 10.96.12.7 80 3
}

virtual-machines-offline() {
  fault "virtual machines have no internet and their forwarded port is dead; the LAN works" "/etc/nftables.conf (table inet filter, forward policy drop) accepts the LAN only; that libvirt's own rules accept virbr0 does not help: a packet must pass both"
  at_provider
  with_lan pc/192.168.1.20
  ip -n gw link add virbr0 up type bridge
  address gw virbr0 192.168.122.1/24
  run_on virbr0 vm 192.168.122.50/24
  ruleset <<'EOF'
table inet filter {
  chain forward { type filter hook forward priority filter; policy drop; ct state established,related accept; iifname "lan0" oifname "wan0" accept; }
}
EOF
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 8022 -j DNAT --to-destination 192.168.122.50:22
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-A FORWARD -d 192.168.122.0/24 -o virbr0 -j ACCEPT
-A FORWARD -s 192.168.122.0/24 -i virbr0 -j ACCEPT
EOF
  serve tcp vm 22
  serve tcp client 443
  ask client tcp 198.51.100.1 8022 2
  ask vm tcp 198.51.100.10 443 4
  ask pc tcp 198.51.100.10 443 3
}

api-calls-fail-by-thirds() {
  fault "a third of all outgoing connections of the private subnet time out" "source NAT rotates over three public addresses; 198.51.100.3 was given back and is no longer on wan0: answers to it find nobody"
  at_provider
  with_lan app1/192.168.1.21 app2/192.168.1.22
  ip -n gw addr add 198.51.100.2/24 dev wan0
  ruleset <<'EOF'
table ip nat {
  chain post {
    type nat hook postrouting priority srcnat;
    oifname "wan0" ip saddr 192.168.1.0/24 snat to numgen inc mod 3 map { 0 : 198.51.100.1, 1 : 198.51.100.2, 2 : 198.51.100.3 }
  }
}
EOF
  serve tcp client 443
  ask app1 tcp 198.51.100.10 443 20
  ask app2 tcp 198.51.100.10 443 20
}

private-subnet-offline-since-resize() {
  fault "instances of the private subnet have no internet since the NAT instance was resized; ssh through it works" "the new instance type names its interfaces ens5 and ens6: masquerade matches oifname eth0, so packets leave with private sources"
  router gw
  node client app bastion
  switch wan lan
  plug wan client eth0 198.51.100.10/24
  plug wan gw ens5 198.51.100.1/24
  plug lan gw ens6 10.0.2.1/24
  plug lan app eth0 10.0.2.20/24
  plug lan bastion eth0 10.0.2.5/24
  default app 10.0.2.1
  default bastion 10.0.2.1
  ruleset <<'EOF'
table ip nat {
  chain pre { type nat hook prerouting priority dstnat; ip daddr 198.51.100.1 tcp dport 22 dnat to 10.0.2.5; }
  chain post { type nat hook postrouting priority srcnat; oifname "eth0" ip saddr 10.0.0.0/16 masquerade; }
}
EOF
  serve tcp client 443
  serve tcp bastion 22
  ask app tcp 198.51.100.10 443 8
  ask app ping 198.51.100.10 - 1
  ask client tcp 198.51.100.1 22 1
}

second-address-dead() {
  fault "the site times out by its new address 203.0.113.1; by the old one it works" "the new address is on a second interface, wan1, without a routing rule of its own: answers leave by wan0 with source 203.0.113.1, and the provider drops foreign sources"
  two_uplinks
  with_lan server/192.168.1.10
  default gw 198.51.100.254
  set_ isp net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.wan0.rp_filter=1 net.ipv4.conf.wan1.rp_filter=1
  rules <<'EOF'
-t nat -A PREROUTING -d 198.51.100.1 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10:8443
-t nat -A PREROUTING -d 203.0.113.1 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10:8443
-t nat -A POSTROUTING -o wan0 -s 192.168.1.0/24 -j MASQUERADE
EOF
  serve tcp server 8443
  ask client tcp 198.51.100.1 443 3
  ask client tcp 203.0.113.1 443 5
}

crawler-cannot-connect() {
  fault "most connections of the crawler (192.168.1.20) to its partner time out; other instances have no trouble" "its port block was written as 40000-40015 instead of -41023: with 16 ports, all held by open connections, there is none for a new one"
  at_provider
  with_lan crawler/192.168.1.20 app/192.168.1.21
  rules <<'EOF'
-t nat -A POSTROUTING -o wan0 -s 192.168.1.20 -p tcp -j SNAT --to-source 198.51.100.1:40000-40015
-t nat -A POSTROUTING -o wan0 -s 192.168.1.21 -p tcp -j SNAT --to-source 198.51.100.1:41024-42047
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp client 443
  ask crawler tcp 198.51.100.10 443 10 requests=2 gap=15
  ask app tcp 198.51.100.10 443 3
}

shop-errors-since-scale-down() {
  fault "a quarter of the connections to the shop are refused" "the balancer still counts mod 4, but the map has only three backends since the fourth was removed: what draws 3 is not translated and ends at gw, where nothing listens"
  at_provider
  with_lan web1/192.168.1.11 web2/192.168.1.12 web3/192.168.1.13
  ruleset <<'EOF'
table ip lb {
  chain pre {
    type nat hook prerouting priority dstnat;
    iifname "wan0" tcp dport 443 dnat to numgen inc mod 4 map { 0 : 192.168.1.11, 1 : 192.168.1.12, 2 : 192.168.1.13 }
  }
}
EOF
  for x in web1 web2 web3; do serve tcp $x 443; done
  ask client tcp 198.51.100.1 443 40
}

new-backend-not-reached() {
  fault "a third of the connections time out since the third web server joined" "its default route leads to the old firewall 192.168.1.254 instead of gw: its answers bypass gw and come to clients from 192.168.1.12"
  at_provider
  with_lan web1/192.168.1.10 web2/192.168.1.11 web3/192.168.1.12
  router old
  plug lan old lan0 192.168.1.254/24
  plug wan old wan0 198.51.100.2/24
  on old iptables -w -t nat -A POSTROUTING -o wan0 -j MASQUERADE
  ip -n web3 route replace default via 192.168.1.254
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -m statistic --mode nth --every 3 --packet 0 -j DNAT --to-destination 192.168.1.10:80
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -m statistic --mode nth --every 2 --packet 0 -j DNAT --to-destination 192.168.1.11:80
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.12:80
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  for x in web1 web2 web3; do serve tcp $x 80; done
  ask client tcp 198.51.100.1 80 9
}

virtual-address-unreachable() {
  fault "nobody reaches the service address 198.51.100.80; by the balancer's own address the service works" "198.51.100.80 is on lo, and arp_ignore=1 (from a guide for real servers) keeps gw from answering ARP for it on wan0"
  at_provider
  with_lan web/192.168.1.10
  ip -n gw addr add 198.51.100.80/32 dev lo
  set_ gw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2
  ruleset <<'EOF'
table ip lb {
  chain pre { type nat hook prerouting priority dstnat; ip daddr { 198.51.100.1, 198.51.100.80 } tcp dport 443 dnat to 192.168.1.10:8443; }
  chain post { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }
}
EOF
  serve tcp web 8443
  ask client tcp 198.51.100.80 443 4
  ask client tcp 198.51.100.1 443 2
}

intranet-dead-for-colleagues() {
  fault "colleagues in the LAN cannot open the intranet by its service address 192.168.1.100; from outside it works" "clients and web servers are in one subnet: the web server answers the client directly, from its own address, as the balancer does not masquerade"
  at_provider
  with_lan web1/192.168.1.10 web2/192.168.1.11 pc/192.168.1.20
  ip -n gw addr add 192.168.1.100/24 dev lan0
  ruleset <<'EOF'
table ip lb {
  chain pre {
    type nat hook prerouting priority dstnat;
    ip daddr { 192.168.1.100, 198.51.100.1 } tcp dport 80 dnat to numgen random mod 2 map { 0 : 192.168.1.10, 1 : 192.168.1.11 }
  }
  chain post { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }
}
EOF
  serve tcp web1 80
  serve tcp web2 80
  ask client tcp 198.51.100.1 80 4
  ask pc tcp 192.168.1.100 80 5
}

checkout-times-out-at-noon() {
  fault "with many customers most connections to the checkout time out" "the rule against floods allows 5 new connections per second, counted per destination instead of per source: all customers together"
  at_provider
  with_lan web/192.168.1.10
  ip -n client addr add 198.51.100.11/24 dev eth0
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10:443
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-A FORWARD -i wan0 -p tcp --syn -m hashlimit --hashlimit-name flood --hashlimit-mode dstip --hashlimit-above 5/sec --hashlimit-burst 10 -j DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i wan0 -p tcp -d 192.168.1.10 --dport 443 -j ACCEPT
EOF
  serve tcp web 443
  ask client tcp 198.51.100.1 443 20
  ask client tcp 198.51.100.1 443 20 from=198.51.100.11
}

database-sessions-break() {
  fault "sessions to the database through the balancer break when they were idle for some seconds; busy ones do not" "net.netfilter.nf_conntrack_tcp_timeout_established is 4 s: an idle session is forgotten, its next packet is invalid (nf_conntrack_tcp_loose=0), is not translated and is dropped on gw"
  at_provider
  with_lan db/192.168.1.10
  set_ gw net.netfilter.nf_conntrack_tcp_timeout_established=4 net.netfilter.nf_conntrack_tcp_loose=0
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 5432 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-A INPUT -m conntrack --ctstate INVALID -j DROP
-A FORWARD -m conntrack --ctstate INVALID -j DROP
EOF
  serve tcp db 5432
  ask client tcp 198.51.100.1 5432 3 requests=3 gap=6
  ask client tcp 198.51.100.1 5432 1 requests=8 gap=1
  sleep 7
}

phones-no-registration() {
  fault "the desk phones do not register with the provider; the web works" "phones are sent by mark over the second uplink, wan1; answers come in there, but rp_filter=1 asks the main table, which knows wan0 only, and drops them"
  two_uplinks
  with_lan phone/192.168.1.30 pc/192.168.1.20
  default gw 198.51.100.254
  ip -n gw route add default via 203.0.113.254 table 102
  ip -n gw rule add fwmark 0x2 lookup 102
  set_ gw net.ipv4.conf.all.rp_filter=1
  rules <<'EOF'
-t mangle -A PREROUTING -i lan0 -s 192.168.1.30 -j MARK --set-mark 0x2
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-t nat -A POSTROUTING -o wan1 -j MASQUERADE
EOF
  serve udp client 5060
  serve tcp client 80
  ask phone udp 192.0.2.10 5060 2 port=5060
  ask phone udp 192.0.2.10 5060 3
  ask pc tcp 192.0.2.10 80 3
}

ftp-lists-nothing() {
  fault "customers log in to the FTP server, but directories and files never come" "no FTP helper is assigned (kernels no longer do it by themselves): the PASV answer names 192.168.1.10, and its data port is neither translated nor open"
  typical
  rules <<'EOF'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i lan0 -o wan0 -j ACCEPT
-A FORWARD -i wan0 -p tcp -m multiport --dports 21,80 -m conntrack --ctstate DNAT -j ACCEPT
-t nat -A PREROUTING -i wan0 -p tcp -m multiport --dports 21,80 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  default client 198.51.100.1
  serve ftp server 21
  serve tcp server 80
  ask client ftp 198.51.100.1 21 3
  ask client tcp 198.51.100.1 80 3
}

new-protocol-never-works() {
  fault "the site does not work by IPv6; by IPv4 it does" "the input chain (policy drop) accepts ICMP but not ICMPv6: neighbour solicitations and advertisements for gw are dropped, so nobody finds anybody"
  typical 6
  ruleset <<'EOF'
table inet fw {
  chain in { type filter hook input priority filter; policy drop; ct state established,related accept; iif "lo" accept; ip protocol icmp accept; tcp dport 22 accept; }
  chain pre { type nat hook prerouting priority dstnat; iifname "wan0" meta nfproto ipv4 tcp dport 443 dnat ip to 192.168.1.10; iifname "wan0" meta nfproto ipv6 tcp dport 443 dnat ip6 to 2001:db8:2::10; }
  chain post { type nat hook postrouting priority srcnat; oifname "wan0" meta nfproto ipv4 masquerade; }
}
EOF
  serve tcp server 443 bind=
  ask client tcp 2001:db8:1::1 443 5
  ask client tcp 198.51.100.1 443 3
}

branch-office-erp-silent() {
  fault "nothing in the branch office (10.20.0.0/24) answers; the tunnel is up and the internet works" "the exemption from NAT stands after MASQUERADE: packets for the branch leave tun-b with source 169.254.7.1, and its firewall lets only 192.168.1.0/24 in"
  at_provider
  with_lan pc/192.168.1.20
  site_tunnel
  rules <<'EOF'
-t nat -A POSTROUTING -s 192.168.1.0/24 -j MASQUERADE
-t nat -A POSTROUTING -s 192.168.1.0/24 -d 10.20.0.0/24 -j ACCEPT
-t mangle -A FORWARD -o tun-b -p tcp --syn -j TCPMSS --clamp-mss-to-pmtu
EOF
  serve tcp erp 3200
  serve tcp client 443
  ask pc tcp 10.20.0.10 3200 4
  ask pc tcp 198.51.100.10 443 2
}

http3-never-used() {
  fault "browsers never get an answer over QUIC (UDP 443) and fall back after a delay; TCP 443 works" "DNAT is there for both, but the forward chain accepts TCP 443 only and drops the rest"
  at_provider
  with_lan edge/192.168.1.10
  ruleset <<'EOF'
table ip lb {
  chain pre { type nat hook prerouting priority dstnat; iifname "wan0" meta l4proto { tcp, udp } th dport 443 dnat to 192.168.1.10; }
  chain post { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }
}
table inet filter {
  chain forward { type filter hook forward priority filter; policy drop; ct state vmap { established : accept, related : accept, invalid : drop }; iifname "lan0" accept; tcp dport { 80, 443 } accept; }
}
EOF
  serve tcp edge 443
  serve udp edge 443
  ask client tcp 198.51.100.1 443 5
  ask client udp 198.51.100.1 443 10 up=1200
}

status-page-times-out() {
  fault "the status page on port 80 times out from outside; on gw itself it works" "port 80 is DNATed to 127.0.0.1:8080 without route_localnet: the kernel drops such packets from wan0 as martians"
  typical
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 127.0.0.1:8080
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10:443
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp gw 8080 bind=127.0.0.1
  serve tcp server 443
  ask client tcp 198.51.100.1 80 4
  ask gw tcp 127.0.0.1 8080 1
  ask client tcp 198.51.100.1 443 3
}

containers-offline-after-audit() {
  fault "all LXC containers are offline in both directions; what runs on the host itself works" "the audit's sysctl file set net.ipv4.ip_forward=0"
  at_provider
  ip -n gw link add lxcbr0 up type bridge
  address gw lxcbr0 10.0.3.1/24
  run_on lxcbr0 mail 10.0.3.10/24
  ruleset <<'EOF'
table inet lxc {
  chain pre { type nat hook prerouting priority dstnat; iifname "wan0" tcp dport { 25, 993 } dnat ip to 10.0.3.10; }
  chain post { type nat hook postrouting priority srcnat; ip saddr 10.0.3.0/24 ip daddr != 10.0.3.0/24 masquerade; }
}
EOF
  set_ gw net.ipv4.ip_forward=0
  serve tcp mail 993
  serve tcp gw 22
  serve udp client 53
  ask client tcp 198.51.100.1 993 4
  ask client tcp 198.51.100.1 22 2
  ask mail udp 198.51.100.10 53 3
}

files-from-home-time-out() {
  fault "from home the file server (port 8443) times out; in the office it works" "the file server's own firewall accepts its local subnet only; DNAT keeps the source, so what comes from outside is dropped there"
  typical
  on server iptables-restore <<'EOF'
*filter
:INPUT DROP [0:0]
-A INPUT -s 192.168.1.0/24 -j ACCEPT
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
EOF
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 8443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 8443
  serve tcp client 443
  ask client tcp 198.51.100.1 8443 2
  ask pc tcp 192.168.1.10 8443 1
  ask pc tcp 198.51.100.10 443 3
}

# ---- healthy ----

compose-host() {
  healthy "docker0 without containers (no carrier), two networks that are isolated from each other, the API port 2375 closed to the world: a scanner tries it in vain (times out on purpose)"
  docker_host
  docker_net docker0 172.17.0.1/16
  docker_net br-11aa22 172.18.0.1/16
  docker_net br-33bb44 172.19.0.1/16
  run_on br-11aa22 web 172.18.0.2/16
  run_on br-33bb44 db 172.19.0.2/16
  docker_publish br-11aa22 tcp 443 172.18.0.2 8443
  rules <<'EOF'
-I DOCKER-USER -i br-11aa22 -o br-33bb44 -j DROP
-I DOCKER-USER -i br-33bb44 -o br-11aa22 -j DROP
-A INPUT -i wan0 -p tcp -m multiport --dports 2375,2376 -j DROP
EOF
  serve tcp web 8443
  serve udp client 53
  ask client tcp 198.51.100.1 443 8
  ask db udp 198.51.100.10 53 2
  ask client tcp 198.51.100.1 2375 1
}

calico-node() {
  healthy "pods with /32 routes inside a blackhole for the node's whole block, proxy ARP for 169.254.1.1, a service scaled to zero that is rejected and not used"
  at_provider
  kube_rules
  for i in 1 2 3; do
    node "pod$i"
    link gw "cali$i" - "pod$i" eth0 "10.244.0.6$i/32"
    set_ gw "net.ipv4.conf.cali$i.proxy_arp=1"
    ip -n gw route add "10.244.0.6$i/32" dev "cali$i"
    ip -n "pod$i" route add default via 169.254.1.1 dev eth0 onlink
  done
  ip -n gw route add blackhole 10.244.0.0/26
  ip -n gw route add blackhole 10.244.0.64/26
  kube_service WEB tcp 10.96.12.7 80 30080 10.244.0.61:80 10.244.0.62:80
  gw iptables -w -I FORWARD -d 10.96.77.1/32 -p tcp --dport 80 -m comment --comment batch:has-no-endpoints -j REJECT
  serve tcp pod1 80
  serve tcp pod2 80
  serve tcp client 443
  ask client tcp 198.51.100.1 30080 5
  ask pod3 tcp 10.96.12.7 80 5
  ask pod3 tcp 198.51.100.10 443 2
}

edge-node() {
  healthy "NodePort connections go on over vxlan to pods of another node, masqueraded to 10.244.0.0; MTU 1450 there, large answers"
  kube_node
  with_lan
  router node2
  plug lan node2 eth0 192.168.1.12/24
  flannel_at gw 0 192.168.1.1
  flannel_at node2 2 192.168.1.12
  flannel_to gw 2 192.168.1.12
  flannel_to node2 0 192.168.1.1
  ip -n gw link set cni0 mtu 1450
  far_pod node2 2 shop 1450
  run_on cni0 front 10.244.0.12/24
  kube_service SHOP tcp 10.96.8.8 80 30443 10.244.2.10:8443
  serve tcp shop 8443
  ask client tcp 198.51.100.1 30443 6 down=50000
  ask front tcp 10.96.8.8 80 4 down=5000
}

ticket-shop-balancer() {
  healthy "weights 7:3 over two backends, a third one drained (in no map) and switched off; a monitor whose health checks end by reset"
  at_provider
  with_lan web1/192.168.1.11 web2/192.168.1.12 web3/192.168.1.13
  ip -n web3 link set eth0 down
  ruleset <<'EOF'
table ip lb {
  chain pre {
    type nat hook prerouting priority dstnat;
    iifname "wan0" tcp dport 443 dnat to numgen random mod 10 map { 0-6 : 192.168.1.11, 7-9 : 192.168.1.12 }
  }
  chain post { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }
}
EOF
  serve tcp web1 443
  serve tcp web2 443
  ask client tcp 198.51.100.1 443 30
  ask client tcp 198.51.100.1 443 2 abort=1
}

sticky-balancer() {
  healthy "connections of a client stay for three hours with the backend that its first one drew (recent); idle backends get none"
  at_provider
  with_lan web1/192.168.1.11 web2/192.168.1.12
  ip -n client addr add 198.51.100.12/24 dev eth0
  rules <<'EOF'
-t nat -N SVC
-t nat -N EP1
-t nat -N EP2
-t nat -A PREROUTING -i wan0 -d 198.51.100.1 -p tcp --dport 80 -j SVC
-t nat -A SVC -m recent --name ep1 --rcheck --seconds 10800 --rsource -j EP1
-t nat -A SVC -m recent --name ep2 --rcheck --seconds 10800 --rsource -j EP2
-t nat -A SVC -m statistic --mode random --probability 0.5 -j EP1
-t nat -A SVC -j EP2
-t nat -A EP1 -p tcp -m recent --name ep1 --set --rsource -j DNAT --to-destination 192.168.1.11:8080
-t nat -A EP2 -p tcp -m recent --name ep2 --set --rsource -j DNAT --to-destination 192.168.1.12:8080
EOF
  serve tcp web1 8080
  serve tcp web2 8080
  ask client tcp 198.51.100.1 80 5
  ask client tcp 198.51.100.1 80 5 from=198.51.100.12
}

customer-portal() {
  healthy "ssh of the server only for the admins' addresses, a banned address (198.51.100.66) and a stranger who keep trying: they time out on purpose"
  typical
  node bot
  plug wan bot eth0 198.51.100.66/24
  ruleset <<'EOF'
table inet fw {
  set admins { type ipv4_addr; flags interval; elements = { 198.51.100.8/29 } }
  set banned { type ipv4_addr; flags timeout; elements = { 198.51.100.66 timeout 1h, 203.0.113.9 timeout 2h } }
  chain early { type filter hook prerouting priority -350; ip saddr @banned counter drop; }
  chain pre { type nat hook prerouting priority dstnat; iifname "wan0" tcp dport 443 dnat ip to 192.168.1.10; iifname "wan0" tcp dport 2222 dnat ip to 192.168.1.10:22; }
  chain forward { type filter hook forward priority filter; policy drop; ct state established,related accept; iifname "lan0" accept; tcp dport 443 accept; ip saddr @admins tcp dport 22 accept; }
}
EOF
  ip -n client addr add 198.51.100.40/24 dev eth0
  serve tcp server 443
  serve tcp server 22
  ask client tcp 198.51.100.1 443 6
  ask client tcp 198.51.100.1 2222 1
  ask client tcp 198.51.100.1 2222 1 from=198.51.100.40
  ask bot tcp 198.51.100.1 443 3
}

nat-instance-a() {
  healthy "source NAT to a range of two addresses, persistent per client, tuned timeouts, send_redirects off"
  at_provider
  with_lan app1/192.168.1.21 app2/192.168.1.22 app3/192.168.1.23
  ip -n gw addr add 198.51.100.2/24 dev wan0
  set_ gw net.netfilter.nf_conntrack_tcp_timeout_established=7200 net.netfilter.nf_conntrack_tcp_timeout_time_wait=30 net.netfilter.nf_conntrack_udp_timeout_stream=180 net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.all.rp_filter=2
  rules <<'EOF'
-t nat -A POSTROUTING -o wan0 -s 192.168.1.0/24 -j SNAT --to-source 198.51.100.1-198.51.100.2 --persistent --random-fully
-t mangle -A FORWARD -o wan0 -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu
EOF
  serve tcp client 443
  serve udp client 123
  ask app1 tcp 198.51.100.10 443 30
  ask app2 tcp 198.51.100.10 443 5 down=100000
  ask app3 udp 198.51.100.10 123 3
  ask app3 ping 198.51.100.10 - 1
}

branch-router() {
  healthy "the backup uplink wan1 has no carrier and its routes wait; its masquerade and its mark table are unused; a phone keeps one UDP flow open"
  two_uplinks
  with_lan server/192.168.1.10 pc/192.168.1.20
  ip -n gw route add default via 198.51.100.254 metric 100
  ip -n gw route add default via 203.0.113.254 metric 200
  ip -n gw route add default via 203.0.113.254 table 102
  ip -n gw rule add fwmark 0x2 lookup 102
  ip -n wan2 link set gw-wan1 down
  rules <<'EOF'
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-t nat -A POSTROUTING -o wan1 -j MASQUERADE
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -i wan1 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
EOF
  serve tcp server 443
  serve udp client 5060
  ask client tcp 198.51.100.1 443 5
  ask pc udp 192.0.2.10 5060 1 port=5060
}

mail-relay-site() {
  healthy "connections to the public DMZ 203.0.113.0/28 go in by gw and come back by another router: gw does not track them, on purpose; NAT for the LAN"
  at_provider
  with_lan pc/192.168.1.20
  router r2
  node mail
  switch dmz
  plug dmz gw dmz0 203.0.113.1/28
  plug dmz r2 dmz0 203.0.113.2/28
  plug dmz mail eth0 203.0.113.10/28
  plug wan r2 wan0 198.51.100.2/24
  default mail 203.0.113.2
  ip -n client route add 203.0.113.0/28 via 198.51.100.1
  ruleset <<'EOF'
table ip dmz { chain raw { type filter hook prerouting priority raw; iifname "wan0" ip daddr 203.0.113.0/28 notrack; }; }
table ip nat { chain post { type nat hook postrouting priority srcnat; oifname "wan0" ip saddr 192.168.1.0/24 masquerade; }; }
EOF
  serve tcp mail 25
  serve tcp client 443
  ask client tcp 203.0.113.10 25 5
  ask pc tcp 198.51.100.10 443 5
}

cottage-dsl-router() {
  healthy "wan0 is shaped to 8 and 20 Mbit/s, inwards over ifb0, with a slow class for bulk that is not used; the load stays below"
  typical
  gw tc qdisc add dev wan0 root handle 1: htb default 20
  gw tc class add dev wan0 parent 1: classid 1:1 htb rate 8mbit burst 15k
  gw tc class add dev wan0 parent 1:1 classid 1:20 htb rate 7mbit ceil 8mbit burst 15k
  gw tc class add dev wan0 parent 1:1 classid 1:30 htb rate 256kbit ceil 8mbit
  ip -n gw link add ifb0 up type ifb
  gw tc qdisc add dev ifb0 root tbf rate 20mbit burst 32k latency 100ms
  gw tc qdisc add dev wan0 ingress
  gw tc filter add dev wan0 parent ffff: protocol all u32 match u32 0 0 action mirred egress redirect dev ifb0
  ruleset <<'EOF'
table ip nat {
  chain pre { type nat hook prerouting priority dstnat; iifname "wan0" tcp dport 443 dnat to 192.168.1.10; }
  chain post { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }
}
EOF
  serve tcp server 443
  serve tcp client 80
  ask client tcp 198.51.100.1 443 3 down=20000
  ask pc tcp 198.51.100.10 80 5 down=20000
}

log-gateway() {
  healthy "syslog and flow records are DNATed to a collector that never answers: UDP in one direction, one sender with a fixed port"
  typical
  ruleset <<'EOF'
table ip nat {
  chain pre { type nat hook prerouting priority dstnat; iifname "wan0" udp dport { 514, 2055, 6343 } dnat to 192.168.1.10; }
  chain post { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }
}
EOF
  serve udp server 514 answer=no
  serve udp server 2055 answer=no
  serve tcp client 443
  ask client udp 198.51.100.1 514 20 answer=no
  ask client udp 198.51.100.1 2055 5 port=2055 up=1200
  ask pc tcp 198.51.100.10 443 3
}

maintenance-access() {
  healthy "port knocking: UDP 7000 then 8000 are dropped and noted, then port 2222 opens for the knocker; a stranger who has not knocked times out on purpose"
  typical
  node stranger
  plug wan stranger eth0 198.51.100.99/24
  ruleset <<'EOF'
table ip knock {
  set half { type ipv4_addr; flags dynamic,timeout; timeout 10s; }
  set open { type ipv4_addr; flags dynamic,timeout; timeout 1m; }
  chain early { type filter hook prerouting priority mangle; iifname "wan0" jump steps; }
  chain steps { udp dport 7000 add @half { ip saddr } drop; udp dport 8000 ip saddr @half add @open { ip saddr } drop; tcp dport 2222 ip saddr != @open ct state new drop; }
  chain pre { type nat hook prerouting priority dstnat; iifname "wan0" tcp dport 2222 dnat to 192.168.1.10:22; iifname "wan0" tcp dport 443 dnat to 192.168.1.10; }
}
EOF
  serve tcp server 22
  serve tcp server 443
  ask client udp 198.51.100.1 7000 0.5 answer=no
  ask client udp 198.51.100.1 8000 0.5 answer=no after=1.5
  ask client tcp 198.51.100.1 2222 1 after=3
  ask client tcp 198.51.100.1 443 5
  ask stranger tcp 198.51.100.1 2222 0.5
}

hosting-gateway() {
  healthy "all rules in iptables-legacy, with limits per source far above the load (hashlimit, connlimit), an empty nft table of a stopped firewall beside"
  typical
  gw iptables-legacy-restore <<'EOF'
*nat
-A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10:8080
-A POSTROUTING -o wan0 -j MASQUERADE
COMMIT
*filter
:FORWARD DROP [0:0]
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i wan0 -p tcp --syn -m hashlimit --hashlimit-name perhost --hashlimit-mode srcip --hashlimit-above 200/sec --hashlimit-burst 400 -j DROP
-A FORWARD -i wan0 -p tcp --syn -m connlimit --connlimit-above 300 -j REJECT --reject-with tcp-reset
-A FORWARD -i wan0 -p tcp -d 192.168.1.10 --dport 8080 -j ACCEPT
-A FORWARD -i lan0 -o wan0 -j ACCEPT
COMMIT
EOF
  ruleset <<<'table inet firewalld { chain filter_FORWARD { type filter hook forward priority 10; policy accept; }; }'
  serve tcp server 8080
  ask client tcp 198.51.100.1 80 40
  ask pc ping 198.51.100.10 - 2
}

report-server() {
  healthy "reports take a second; an impatient widget gives up after 0.3 s (its timeouts are on purpose), another client ends by reset; people who wait get theirs"
  typical
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10:8443
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 8443 delay=1
  ask client tcp 198.51.100.1 443 4 timeout=5
  ask client tcp 198.51.100.1 443 2 timeout=0.3
  ask client tcp 198.51.100.1 443 2 timeout=5 abort=1
}

campus-gateway() {
  healthy "private networks are blackholed so that they do not leak to the provider, a public address under attack too; a printer driver still polls 10.66.1.9 (times out on purpose)"
  at_provider
  with_lan server/192.168.1.10 pc/192.168.1.20
  ip -n gw route add blackhole 10.0.0.0/8
  ip -n gw route add blackhole 172.16.0.0/12
  ip -n gw route add blackhole 192.168.0.0/16
  ip -n gw route add blackhole 198.51.100.77/32
  ruleset <<'EOF'
table ip nat {
  chain pre { type nat hook prerouting priority dstnat; iifname "wan0" ip daddr 198.51.100.1 tcp dport 443 dnat to 192.168.1.10; }
  chain post { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }
}
EOF
  serve tcp server 443
  serve tcp client 80
  ask client tcp 198.51.100.1 443 5
  ask pc tcp 198.51.100.10 80 5
  ask pc tcp 10.66.1.9 9100 1
}

lab-network() {
  healthy "NPTv6: fd00:1::/64 is mapped one to one to 2001:db8:5::/64, which is routed to gw and on none of its interfaces; no NAT for IPv4 from outside"
  typical
  ip -n client addr add 2001:db8:1::10/64 dev eth0
  address gw wan0 2001:db8:1::1/64
  address gw lan0 fd00:1::1/64
  address server eth0 fd00:1::10/64
  address pc eth0 fd00:1::20/64
  default server fd00:1::1
  default pc fd00:1::1
  ip -n client route add 2001:db8:5::/64 via 2001:db8:1::1
  rules <<'EOF'
-6 -t nat -A POSTROUTING -o wan0 -s fd00:1::/64 -j NETMAP --to 2001:db8:5::/64
-6 -t nat -A PREROUTING -i wan0 -d 2001:db8:5::/64 -j NETMAP --to fd00:1::/64
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 443 bind=
  serve tcp client 80 bind=
  ask client tcp 2001:db8:5::10 443 5
  ask pc tcp 2001:db8:1::10 80 4
  ask pc ping 2001:db8:1::10 - 1
}

two-site-firm() {
  healthy "a tunnel with MTU 1400 to a branch that lets only 192.168.1.0/24 in: exempt from NAT, MSS clamped; the tunnel's UDP untracked; large transfers"
  at_provider
  with_lan pc/192.168.1.20
  site_tunnel
  rules <<'EOF'
-t raw -A PREROUTING -i wan0 -p udp --dport 4789 -j NOTRACK
-t raw -A OUTPUT -o wan0 -p udp --dport 4789 -j NOTRACK
-t nat -A POSTROUTING -s 192.168.1.0/24 -d 10.20.0.0/24 -j ACCEPT
-t nat -A POSTROUTING -o wan0 -s 192.168.1.0/24 -j MASQUERADE
-t mangle -A FORWARD -o tun-b -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu
-t mangle -A FORWARD -i tun-b -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --set-mss 1360
EOF
  serve tcp erp 3200
  serve tcp client 443
  ask pc tcp 10.20.0.10 3200 4 up=30000 down=60000
  ask pc tcp 198.51.100.10 443 4
  ask pc ping 10.20.0.10 - 1
}

print-shop-uploads() {
  healthy "FTP behind DNAT with the helper assigned by a raw rule; data connections come in as RELATED on ports that no rule names"
  typical
  rules <<'EOF'
-t raw -A PREROUTING -i wan0 -p tcp --dport 21 -j CT --helper ftp
-t nat -A PREROUTING -i wan0 -p tcp --dport 21 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i wan0 -p tcp -d 192.168.1.10 --dport 21 -j ACCEPT
-A FORWARD -i lan0 -o wan0 -j ACCEPT
EOF
  serve ftp server 21
  serve udp client 53
  ask client ftp 198.51.100.1 21 3
  ask pc udp 198.51.100.10 53 3
}

guest-wlan-with-resolver() {
  healthy "guests' DNS is DNATed to a macvlan container on lan0, which gw reaches over a macvlan interface of its own (shim0) with a /32 route"
  router gw
  with_lan server/192.168.1.10 pc/192.168.1.20
  node guest resolver
  link gw wlan0 10.9.0.1/24 guest eth0 10.9.0.20/24
  default guest 10.9.0.1
  ip -n gw link add link lan0 name eth0 netns resolver type macvlan mode bridge
  address resolver eth0 192.168.1.53/24
  ip -n gw link add link lan0 name shim0 type macvlan mode bridge
  address gw shim0 192.168.1.54/32
  ip -n gw route add 192.168.1.53/32 dev shim0
  rules <<'EOF'
-t nat -A PREROUTING -i wlan0 -p udp --dport 53 -j DNAT --to-destination 192.168.1.53
-t nat -A PREROUTING -i wlan0 -p tcp --dport 53 -j DNAT --to-destination 192.168.1.53
-t nat -A POSTROUTING -s 10.9.0.0/24 ! -o wlan0 -j MASQUERADE
EOF
  for x in udp tcp; do serve $x resolver 53; done
  serve tcp server 80
  ask guest udp 10.9.0.1 53 5
  ask guest tcp 192.168.1.10 80 3
}

school-proxy() {
  healthy "web traffic of the LAN is redirected to a proxy on gw, DNS to gw's resolver, QUIC is rejected on purpose (browsers try it, then use TCP)"
  at_provider
  with_lan pc/192.168.1.20
  ruleset <<'EOF'
table inet school {
  chain pre { type nat hook prerouting priority dstnat; iifname "lan0" tcp dport 80 redirect to :3128; iifname "lan0" udp dport 53 redirect to :5353; }
  chain forward { type filter hook forward priority filter; iifname "lan0" udp dport 443 reject; }
  chain post { type nat hook postrouting priority srcnat; oifname "wan0" meta nfproto ipv4 masquerade; }
}
EOF
  serve tcp gw 3128
  serve udp gw 5353
  serve tcp client 443
  ask pc tcp 203.0.113.99 80 5 want=gw
  ask pc udp 9.9.9.9 53 5
  ask pc udp 198.51.100.10 443 1 answer=no
  ask pc tcp 198.51.100.10 443 4
}
