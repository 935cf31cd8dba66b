#!/bin/sh -e
# Makes this machine the shop's database, and shows that it is one.
install -d -o mysql /run/mysqld
setsid mariadbd --user=mysql --bind-address=0.0.0.0 </dev/null >/dev/null 2>&1 &
until mariadb -e 'select 1' >/dev/null 2>&1; do sleep 1; done
mariadb -e "create database shop; create table shop.sold (pieces int); insert into shop.sold values (40), (2);
            create user app@'%' identified by 'secret'; grant select on shop.* to app@'%'"
mariadb -NBe 'select sum(pieces) from shop.sold'
