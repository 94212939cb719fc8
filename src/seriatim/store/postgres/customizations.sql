-- The users' customizations of a table, so that its replacement can have them too.

-- name: list_indexes
-- Indexes that belong to no constraint: the primary key is created with the table.
select pg_get_indexdef(i.indexrelid)
from pg_index i
where i.indrelid = :name::regclass
  and not exists (select 1 from pg_constraint c where c.conindid = i.indexrelid)
order by i.indexrelid;

-- name: list_statistics
select pg_get_statisticsobjdef(s.oid) from pg_statistic_ext s
where s.stxrelid = :name::regclass
order by s.oid;

-- name: list_settings
select 'enable row level security' from pg_class
where oid = :name::regclass and relrowsecurity
union all
select 'force row level security' from pg_class
where oid = :name::regclass and relforcerowsecurity
union all
select 'set (' || array_to_string(reloptions, ', ') || ')' from pg_class
where oid = :name::regclass and reloptions is not null;

-- name: list_final_settings
-- Settings that need the indexes. The owner is last, and only if this role may change it.
select case c.relreplident when 'f' then 'replica identity full' else 'replica identity nothing' end
from pg_class c where c.oid = :name::regclass and c.relreplident in ('f', 'n')
union all
select 'replica identity using index ' || quote_ident(n.relname)
from pg_index i join pg_class n on n.oid = i.indexrelid
where i.indrelid = :name::regclass and i.indisreplident
union all
select 'owner to ' || quote_ident(pg_get_userbyid(c.relowner))
from pg_class c
where c.oid = :name::regclass and pg_get_userbyid(c.relowner) <> current_user
  and pg_has_role(c.relowner, 'member')
  and has_schema_privilege(c.relowner, c.relnamespace, 'create');

-- name: list_grants
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

-- name: list_comments
select null, quote_literal(d.description)
from pg_description d
where d.objoid = :name::regclass and d.classoid = 'pg_class'::regclass and d.objsubid = 0
union all
select t.attname, quote_literal(d.description)
from pg_description d join pg_attribute t on t.attrelid = d.objoid and t.attnum = d.objsubid
where d.objoid = :name::regclass and d.classoid = 'pg_class'::regclass and d.objsubid > 0;

-- name: list_obstacles
-- Objects that would be lost with the table, or that prevent dropping it.
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
union all
select 'rule', quote_ident(rulename) from pg_rewrite where ev_class = :name::regclass
union all
select 'publication', quote_ident(p.pubname)
from pg_publication p join pg_publication_rel r on r.prpubid = p.oid
where r.prrelid = :name::regclass
union all
-- Functions and tables that depend on this table or on its row type.
select distinct 'dependent', pg_describe_object(d.classid, d.objid, 0)
from pg_depend d join pg_class c on c.oid = :name::regclass
     join pg_type t on t.oid = c.reltype
where d.deptype = 'n' and d.classid in ('pg_proc'::regclass, 'pg_class'::regclass)
  and (d.refclassid = 'pg_class'::regclass and d.refobjid = c.oid
       or d.refclassid = 'pg_type'::regclass and d.refobjid in (t.oid, t.typarray))
order by 1, 2;
