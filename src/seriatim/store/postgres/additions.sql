-- What users have added to a table of ours, so that a table in its place can have it, too.

-- name: indexes
-- Those that belong to no constraint: the primary key is the table's own.
select pg_get_indexdef(i.indexrelid)
from pg_index i
where i.indrelid = :name::regclass
  and not exists (select 1 from pg_constraint c where c.conindid = i.indexrelid)
order by i.indexrelid;

-- name: grants
select a.privilege_type, null,
       case when a.grantee = 0 then 'public' else quote_ident(pg_get_userbyid(a.grantee)) end,
       a.is_grantable
from pg_class c cross join lateral aclexplode(c.relacl) a
where c.oid = :name::regclass and a.grantee <> c.relowner
union all
select a.privilege_type, t.attname,
       case when a.grantee = 0 then 'public' else quote_ident(pg_get_userbyid(a.grantee)) end,
       a.is_grantable
from pg_attribute t join pg_class c on c.oid = t.attrelid
     cross join lateral aclexplode(t.attacl) a
where t.attrelid = :name::regclass and not t.attisdropped and a.grantee <> c.relowner;

-- name: comments
select null, quote_literal(d.description)
from pg_description d
where d.objoid = :name::regclass and d.classoid = 'pg_class'::regclass and d.objsubid = 0
union all
select t.attname, quote_literal(d.description)
from pg_description d join pg_attribute t on t.attrelid = d.objoid and t.attnum = d.objsubid
where d.objoid = :name::regclass and d.classoid = 'pg_class'::regclass and d.objsubid > 0;

-- name: obstacles
-- What would be lost with the table, or would keep it from being dropped.
select 'trigger', quote_ident(tgname) from pg_trigger
where tgrelid = :name::regclass and not tgisinternal
union all
select 'policy', quote_ident(polname) from pg_policy where polrelid = :name::regclass
union all
select 'foreign key', quote_ident(conname) from pg_constraint
where contype = 'f' and (confrelid = :name::regclass or conrelid = :name::regclass)
union all
select 'constraint', quote_ident(conname) from pg_constraint
where contype in ('c', 'u', 'x') and conrelid = :name::regclass
union all
select distinct 'view', v.oid::regclass::text
from pg_depend d join pg_rewrite r on r.oid = d.objid join pg_class v on v.oid = r.ev_class
where d.classid = 'pg_rewrite'::regclass and d.refobjid = :name::regclass
  and v.oid <> :name::regclass
order by 1, 2;
